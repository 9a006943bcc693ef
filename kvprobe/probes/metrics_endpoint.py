"""Fetches ``/metrics`` of a vLLM server."""

from __future__ import annotations

import contextlib
import time
from typing import Any
from urllib.parse import urlsplit

from kvprobe.errors import ProbeError, UsageError
from kvprobe.formats.vllm_metrics import Scrape, parse_metrics_page
from kvprobe.system import System

_LIMIT_BYTES = 64 * 1024 * 1024


def metrics_url(text: str) -> str:
    """``host:8000`` and ``http://host:8000`` mean its ``/metrics``. Raises UsageError."""
    url = text if "://" in text else f"http://{text}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"{text!r} is not the address of a server such as http://decode:8000/metrics.")
    return url if parts.path.strip("/") else url.rstrip("/") + "/metrics"


def scrape(system: System, url: str, *, timeout_seconds: float = 10.0) -> Scrape:
    """One scrape. Raises ProbeError (unreachable, refused, not vLLM) or FormatError (not a metrics page)."""
    page = parse_metrics_page(fetch(system, url, timeout_seconds=timeout_seconds), url)
    if not page.is_vllm:
        raise ProbeError(
            f"{url} is a Prometheus page without a vllm: series.", "Give the address of a vLLM server."
        )
    return page


def scrape_twice(
    system: System, urls: tuple[str, ...], seconds: float, *, timeout_seconds: float = 10.0
) -> tuple[dict[str, Scrape], dict[str, Scrape] | None, float | None]:
    """Every URL now and, unless ``seconds`` is 0, again after them: first, second and the seconds really between.

    Ctrl-C ends the wait, not the measurement.
    """
    first = {url: scrape(system, url, timeout_seconds=timeout_seconds) for url in urls}
    if not seconds:
        return first, None, None
    started = system.now()
    if system.replayed_from is None:
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(seconds)
    second = {url: scrape(system, url, timeout_seconds=timeout_seconds) for url in urls}
    return first, second, (system.now() - started).total_seconds()


def fetch(system: System, url: str, *, timeout_seconds: float = 10.0) -> str:
    """The text of a page. Raises ProbeError."""

    def look() -> Any:
        import httpx

        try:
            data = bytearray()
            with httpx.stream("GET", url, timeout=timeout_seconds, follow_redirects=True) as answer:
                if answer.status_code != 200:
                    raise ProbeError(
                        f"{url} answers HTTP {answer.status_code}.",
                        "Check address and path; vLLM serves /metrics.",
                    )
                for piece in answer.iter_bytes():
                    data += piece
                    if len(data) > _LIMIT_BYTES:
                        raise ProbeError(f"{url} is larger than {_LIMIT_BYTES // 1024**2} MiB.")
            return data.decode("utf-8", "replace")
        except httpx.TimeoutException:
            raise ProbeError(
                f"{url} did not answer within {timeout_seconds:.0f} s.",
                "Is the server busy or the port filtered?",
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ProbeError(
                f"{url} cannot be read: {error or type(error).__name__}.",
                "Is the server running and reachable from here?",
            ) from None

    return str(system.observe("http", url, look))
