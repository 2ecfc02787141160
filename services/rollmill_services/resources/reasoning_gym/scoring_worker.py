"""Worker program that scores answers with the scorers of reasoning-gym.

Request: `{"family", "entry", "answer", "limit_seconds"}`; without an answer only the family is looked up. Answer:
`{"score"}`, in [0, 1], `{"unknown": why}`, or `{"score": 0.0, "failed": why}` when the scorer itself failed.
"""

import os
import warnings

from rollmill.contracts.json import JsonObject
from rollmill.grading.serving import serve
from rollmill_services.resources.reasoning_gym.harmless import is_harmless


def answer(request: JsonObject) -> JsonObject:
    """Answer one request."""
    from reasoning_gym.factory import DATASETS, get_score_answer_fn

    family, text = request["family"], request["answer"]
    if family not in DATASETS or family == "composite":
        return {"unknown": f"{family!r} is no task family of the reasoning-gym that is installed"}
    if text is None or not is_harmless(family, text):
        return {"score": 0.0}
    try:
        score = float(get_score_answer_fn(family)(answer=text, entry=request["entry"]))
    except Exception as error:  # a scorer meets texts and metadata that its author never thought of
        return {"score": 0.0, "failed": f"{type(error).__name__}: {error}"[:300]}
    return {"score": min(max(score, 0.0), 1.0) if score == score else 0.0}


if __name__ == "__main__":
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # each thread would take of the memory that is allowed
    warnings.simplefilter("ignore")
    import reasoning_gym  # noqa: F401 - it takes seconds, so it is imported before the process is ready

    serve(answer)
