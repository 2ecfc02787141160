import json
import re

from rollmill import Model
from rollmill.contracts.json import JsonObject
from rollmill.openai import new_response, text_message

NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


class ToyJudge(Model):
    """Judges by rules, so that the example needs no key: a real judge is an `openai_compatible` model in its place."""

    async def respond(self, request: JsonObject) -> JsonObject:
        """Answer a judge's prompt: one line with a verdict for each question."""
        prompt = request["input"][-1]["content"]
        [boundary] = set(re.findall(r"^VERDICT-\w+", prompt, re.M))
        quoted = re.findall(r'^(\w+).*?: ("(?:[^"\\]|\\.)*")$', prompt, re.M)
        verdicts = _verdicts({name: json.loads(text) for name, text in quoted})
        numbers = [""] if len(verdicts) == 1 else [f" {number}" for number, _ in enumerate(verdicts, start=1)]
        lines = [f"{boundary}{number}: {'YES' if yes else 'NO'}" for number, yes in zip(numbers, verdicts, strict=True)]
        return new_response([text_message("\n".join(lines))], request=request, model="toy")


def _verdicts(texts: dict[str, str]) -> list[bool]:
    if "Criteria" in texts:  # met when the last word of the criterion is in the answer
        last_words = [line.split()[-1] for line in texts["Criteria"].splitlines()]
        return [word.lower() in texts["Answer"].lower() for word in last_words]
    if "What" in texts:  # the shorter answer is better
        first, second = len(texts["First"]), len(texts["Second"])
        return [first < second, second < first]
    return [_number(texts["First"]) == _number(texts["Second"])]


def _number(text: str) -> str | None:
    """The last number of a text, in digits."""
    found = re.findall(rf"\d+|{'|'.join(NUMBERS)}", text.lower())
    return None if not found else str(NUMBERS.index(found[-1])) if found[-1] in NUMBERS else found[-1]
