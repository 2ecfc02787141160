from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.rows import Row
from rollmill.contracts.services import ReverifyMode
from rollmill.errors import ConfigError
from rollmill.server.sessions import Session


class Models(Protocol):
    """The models of the topology, as an environment reaches them."""

    async def respond(self, name: str, request: JsonObject) -> JsonObject:
        """Send a Responses request to the model service of this name and return its Responses object.

        Raises:
            RollmillError: the model failed; its `boundary` extension is `model`.
        """


class _NoModels:
    async def respond(self, name: str, request: JsonObject) -> JsonObject:
        raise ConfigError(f"there is no way to the model {name!r}: `models` is set when the service starts")


class Resources(ABC):
    """An environment: tools, state and the verifier. Subclass it, declare tools with `@tool`, write `verify`.

    It knows nothing of HTTP: a test builds it and calls its methods.
    """

    Settings: ClassVar[type[ServiceSettings]] = ServiceSettings
    """Settings class of the environment, for those that have settings of their own."""
    reverify_mode: ClassVar[ReverifyMode] = "unknown"
    """`stateless`: `verify` needs only the row. `unsupported`: it needs the live session."""
    score_fields: ClassVar[tuple[str, ...]] = ("reward",)
    """Numeric fields of a verified row that are scores; statistics are of the first one unless asked otherwise."""
    answer_field: ClassVar[str | None] = "extracted_answer"
    """Field of a verified row that holds the answer, for majority votes; None when there is none."""
    models: Models = _NoModels()
    """How a verifier asks a model, such as a judge; there from `startup` on. Name the model in a setting of type
    `Annotated[str, ServiceRef("model")]`. A test puts a fake here."""

    def __init__(self, settings: ServiceSettings | None = None) -> None:
        self.settings = settings or self.Settings()

    async def startup(self) -> None:
        """Open what the environment needs; the service is not ready before this returns."""

    async def shutdown(self) -> None:
        """Release what `startup` opened."""

    async def seed_session(self, session: Session, row: Row) -> None:
        """Prepare the session for a task; `session.state` is the environment's own."""

    @abstractmethod
    async def verify(self, rollout: Rollout, session: Session) -> Verdict | float:
        """Grade a finished rollout.

        Raises:
            InputError: the row lacks what the verifier needs.
        """

    async def close_session(self, session: Session) -> None:
        """Release what the session holds; called exactly once for each session, also for reaped ones."""

    def compute_metrics(self, tasks: list[list[Row]]) -> JsonObject:
        """Return metrics of the environment's own over rollouts grouped by task.

        A list under `per_task_metrics`, of objects with `_ng_task_index`, is merged into the task rows; every
        other entry becomes an agent metric.
        """
        return {}

    def get_key_metrics(self, agent_metrics: JsonObject) -> JsonObject:
        """Choose the headline metrics; by default every mean."""
        return {name: value for name, value in agent_metrics.items() if name.startswith("mean/")}
