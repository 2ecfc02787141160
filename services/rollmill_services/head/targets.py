from urllib.parse import urlsplit

from rollmill.contracts.services import Instance, ScrapeTarget


def scrape_target(instance: Instance) -> ScrapeTarget:
    """Say where Prometheus finds the numbers of an instance; those labels that do not begin with `__` become theirs."""
    parts = urlsplit(instance.url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return ScrapeTarget(
        targets=[f"{host}:{port}"],
        labels={
            "__scheme__": parts.scheme,
            "__metrics_path__": parts.path.rstrip("/") + "/metrics",
            "service": instance.name,
        },
    )
