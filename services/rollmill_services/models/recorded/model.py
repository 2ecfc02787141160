import asyncio
from typing import ClassVar

from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject
from rollmill.openai import new_response
from rollmill.openai.items import input_items
from rollmill.server.model import Model
from rollmill_services.models.recorded.index import RecordingIndex, load_recordings
from rollmill_services.models.recorded.settings import RecordedSettings


class Recorded(Model):
    """Answers as recorded rollouts did, one step of the loop per request.

    It remembers nothing between the steps of a rollout: the request itself tells which recording it replays. Only
    the turn, the recording of an input that comes next, is counted, by each replica for itself.
    """

    Settings: ClassVar[type[ServiceSettings]] = RecordedSettings

    def __init__(self, settings: RecordedSettings) -> None:
        super().__init__(settings)
        self._paths = settings.rollouts
        self._loop = settings.loop
        self._index = RecordingIndex()

    async def startup(self) -> None:
        """Read the rollouts files.

        Raises:
            ConfigError: a file cannot be read, or a line is not a rollout; names file and line.
        """
        self._index = await asyncio.to_thread(load_recordings, self._paths, loop=self._loop)

    async def respond(self, request: JsonObject) -> JsonObject:
        """Answer with the recorded items of the step that comes next.

        Raises:
            InputError: the request's input is malformed.
            RecordingNotFoundError: no recording has this input, or none goes on from here.
        """
        recording, index = self._index.next_step(input_items(request.get("input")))
        recorded = recording.response_of(index)
        response = new_response(
            [dict(item) for item in recording.steps[index]],
            request=request,
            model=recorded.get("model") or "",
            usage=recorded.get("usage"),
            status=recorded.get("status") or "completed",
        )
        response["incomplete_details"] = recorded.get("incomplete_details")
        return response
