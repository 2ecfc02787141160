"""The layer outside the head's edge: what a browser may do with its cookie.

The edge knows bearer tokens only. Here a valid session becomes the token, on the paths of the page and nowhere else,
and a call that another site made a browser send is refused.
"""

from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rollmill.config.tokens import Tokens
from rollmill.errors import RollmillError, UnauthorizedError
from rollmill.server.calls import problem_answer
from rollmill.server.problems import to_response
from rollmill_services.head.sessions import COOKIE, PageSessions

PAGE = "/ui"
"""The page itself, to be seen by anybody: it holds no data."""
LOGIN = "/login"
LOGOUT = "/logout"
GATEWAY = "/api/"
"""What the page asks for: needs a session, or the token."""
PAGE_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
DATA_POLICY = b"default-src 'none'; base-uri 'none'; frame-ancestors 'none'; sandbox"
"""An answer of the gateway is data, also when somebody opens it as a page."""
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class CrossSiteError(RollmillError):
    """Another site made a browser call the page's gateway."""

    slug, title, status = "cross-site", "Cross-site request", 403


class PageGate:
    """Lets browsers in: see the module.

    Args:
        edge: the application with its edge.
        sessions: checks cookies.
        tokens: what the edge asks for.
    """

    def __init__(self, edge: ASGIApp, sessions: PageSessions, tokens: Tokens) -> None:
        self._edge = edge
        self._sessions = sessions
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] != "http" or not _is_of_page(scope["path"]):
            await self._edge(scope, receive, send)
            return
        headers = Headers(scope=scope)
        policy = DATA_POLICY if scope["path"].startswith(GATEWAY) else PAGE_POLICY

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = (*_HEADERS, (b"content-security-policy", policy))
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        try:
            _check_same_site(scope["method"], headers)
            admitted = self._admitted(scope, headers)
        except RollmillError as error:
            answer = to_response(problem_answer(error, instance=scope["path"]))
            await answer(scope, receive, protected)
            return
        await self._edge(admitted, receive, protected)

    def _admitted(self, scope: Scope, headers: Headers) -> Scope:
        if not self._tokens or "authorization" in headers:
            return scope
        if scope["path"].startswith(GATEWAY) and not self._sessions.valid(_cookie(headers)):
            raise UnauthorizedError("log in first: the page asks for the token that 'rollmill token' prints")
        return {**scope, "headers": [*scope["headers"], (b"authorization", b"Bearer " + self._tokens.shown.encode())]}


def _is_of_page(path: str) -> bool:
    return path in ("/", LOGIN, LOGOUT, PAGE) or path.startswith((GATEWAY, PAGE + "/"))


def _check_same_site(method: str, headers: Headers) -> None:
    """Refuse what another site sends; a link to the page may come from anywhere.

    Raises:
        CrossSiteError: it is not the page, nor the person, that asks.
    """
    site = headers.get("sec-fetch-site", "same-origin")
    if method in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate":
        return
    origin = headers.get("origin")
    foreign = origin is not None and urlsplit(origin).netloc != headers.get("host")
    if foreign or site not in ("same-origin", "none"):
        raise CrossSiteError("only the page itself may call this; programs use the services and a bearer token")


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""
