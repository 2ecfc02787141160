from pydantic import BaseModel, ConfigDict


class WireModel(BaseModel):
    """Base of Rollmill's own control-plane messages: frozen, and a wrong field is an error that names it.

    Rows are never wire models: they stay open JSON objects (`rollmill.contracts.rows`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
