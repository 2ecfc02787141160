from typing import Annotated

from fastapi import APIRouter, Depends, Response

from rollmill.contracts.problem import problems
from rollmill.contracts.services import Heartbeat, Kind, Lease, Registration, ScrapeTarget, ServiceList
from rollmill.server.app_state import from_state
from rollmill_services.head.registry import Registry
from rollmill_services.head.targets import scrape_target

router = APIRouter(prefix="/v1/services", tags=["registry"])
targets = APIRouter(tags=["registry"])


RegistryDep = Annotated[Registry, Depends(from_state("registry"))]


@router.post("", status_code=201, responses=problems(409))
async def register(registration: Registration, registry: RegistryDep) -> Lease:
    """Register one instance of a service."""
    return registry.register(registration)


@targets.get("/v1/scrape_targets")
async def scrape_targets(registry: RegistryDep) -> list[ScrapeTarget]:
    """List the live instances as Prometheus' HTTP service discovery (`http_sd_configs`) expects them."""
    return [scrape_target(instance) for instance in registry.services()]


@router.put("/{name}/{instance}", responses=problems(404))
async def renew(name: str, instance: str, beat: Heartbeat, registry: RegistryDep) -> Lease:
    """Renew a lease. 404 means: register again."""
    return registry.renew(name, instance, beat)


@router.delete("/{name}/{instance}", status_code=204, response_class=Response)
async def remove(name: str, instance: str, registry: RegistryDep) -> None:
    """Drop a registration; repeating it is no error."""
    registry.remove(name, instance)


@router.get("")
async def services(registry: RegistryDep, kind: Kind | None = None) -> ServiceList:
    """List the live instances of all services. Settings and secrets are never part of it."""
    return ServiceList(services=registry.services(kind))


@router.get("/{name}", responses=problems(404))
async def service(name: str, registry: RegistryDep) -> ServiceList:
    """List the live instances of one service."""
    return ServiceList(services=registry.service(name))
