from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import answer_text, content_text
from rollmill.openai.items import item_type
from rollmill.server.agent import Episode

_BRIEF = """You play a user who talks with an assistant. Write what the user says next: one message, nothing else. \
Tell what the assistant needs to know when it asks, and make nothing up. When you have what you want, or it is clear \
that you will not get it, answer with {stop_phrase} alone.

This is who you are and what you want:
{instructions}"""
_GREETING = "Hello! How can I help you?"


class User:
    """The user of one conversation, played by a model.

    Args:
        model: name of the model service.
        instructions: who the user is and what they want.
        stop_phrase: what the model writes to end the conversation.
        max_tokens: most tokens of one message.
    """

    def __init__(self, model: str, instructions: str, stop_phrase: str, max_tokens: int) -> None:
        self._model = model
        self._brief = _BRIEF.format(stop_phrase=stop_phrase, instructions=instructions)
        self._stop_phrase = stop_phrase
        self._max_tokens = max_tokens

    async def reply(self, conversation: list[JsonObject], episode: Episode) -> tuple[str, str]:
        """Return what the user says next, and why the conversation is over: `stop_phrase`, `silence`, or empty.

        Args:
            conversation: the items so far, as the assistant's model sees them.
            episode: asks the model.
        """
        said = [{"role": "user", "content": _GREETING}, *_mirrored(conversation)]
        items = [{"role": "system", "content": self._brief}, *said]
        request: JsonObject = {"input": items, "max_output_tokens": self._max_tokens}
        text = answer_text(await episode.ask(self._model, request)).strip()
        if self._stop_phrase in text:
            return text.replace(self._stop_phrase, "").strip(), "stop_phrase"
        return text, "" if text else "silence"


def _mirrored(conversation: list[JsonObject]) -> list[JsonObject]:
    """Return what was said with the two sides exchanged; what tools and system messages say is not the user's."""
    mirrored = []
    sides = {"user": "assistant", "assistant": "user"}
    for item in conversation:
        text = content_text(item.get("content"))
        if item_type(item) == "message" and item.get("role") in sides and text:
            mirrored.append({"role": sides[item["role"]], "content": text})
    return mirrored
