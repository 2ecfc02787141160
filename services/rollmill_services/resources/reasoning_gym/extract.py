import re

from rollmill.grading.boxed import last_boxed

_TAGGED = re.compile(r"<answer>((?:(?!</?answer>).)*+)</answer>", re.DOTALL)


def extracted_answer(text: str) -> str:
    r"""Return what stands in the last `<answer>` tag, else in the last `\boxed{}`, else all of the text."""
    tagged = _TAGGED.findall(text)
    if tagged:
        return str(tagged[-1]).strip()
    boxed = last_boxed(text)
    return text if boxed is None else boxed
