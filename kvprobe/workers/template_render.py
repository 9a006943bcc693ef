"""Renders an untrusted chat template with Jinja's immutable sandbox inside a process that can do nothing else.

Before the template's first line runs, the process gives up: its environment, opening files or sockets
(RLIMIT_NOFILE 0), writing more than 1 MiB, starting programs, more than its memory and CPU time. The
environment is that of vLLM and transformers (``trim_blocks``, ``lstrip_blocks``, loop controls, ``tojson`` without
ASCII escaping, ``raise_exception``, ``strftime_now``, the ``generation`` tag):
https://huggingface.co/docs/transformers/chat_templating_writing
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import resource
import time
from collections.abc import Callable
from typing import Any

from kvprobe.workers.base import Worker, WorkerFailure, main
from kvprobe.workers.template_inspect import inspect_template

OUTPUT_LIMIT_CHARS = 4 * 1024 * 1024
TOTAL_LIMIT_CHARS = 16 * 1024 * 1024


class Renderer:
    """One compiled template."""

    def __init__(self, text: str, special_tokens: dict[str, str]) -> None:
        self._now: datetime.datetime = datetime.datetime(2026, 1, 1)
        self._special = special_tokens
        self._environment = environment()
        self._environment.globals["raise_exception"] = _refuse
        self._environment.globals["strftime_now"] = lambda form: self._now.strftime(str(form))
        self.tree = self._environment.parse(text)
        self._template = self._environment.from_string(text)
        self.content_as_parts = False
        self.total_chars = 0

    def __call__(self, request: dict[str, Any]) -> str:
        self._now = datetime.datetime.fromisoformat(request["now"])
        kwargs = {
            **self._special,
            "documents": None,
            **request["kwargs"],
            "messages": [self._content(m) for m in request["messages"]],
            "tools": request["tools"],
            "add_generation_prompt": request["add_generation_prompt"],
        }
        pieces, length = [], 0
        for piece in self._template.generate(**kwargs):
            length += len(piece)
            if length > OUTPUT_LIMIT_CHARS:
                raise MemoryError(f"the prompt is longer than {OUTPUT_LIMIT_CHARS:,} characters")
            pieces.append(piece)
        return "".join(pieces)

    def _content(self, message: dict[str, Any]) -> dict[str, Any]:
        """vLLM's content format: a list of parts if the template loops over the content, a text otherwise."""
        content = message.get("content")
        if self.content_as_parts and isinstance(content, str):
            return {**message, "content": [{"type": "text", "text": content}]}
        if not self.content_as_parts and isinstance(content, list):
            texts = [p.get("text", "") for p in content if isinstance(p, dict) and p.get("type") == "text"]
            return {**message, "content": "\n".join(texts)}
        return message


def environment() -> Any:
    """The sandboxed Jinja environment of vLLM and transformers."""
    import jinja2.ext
    from jinja2 import nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """``{% generation %}`` marks what the model wrote; it prints its body."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    found = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    found.filters["tojson"] = _tojson
    return found


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: Any) -> None:
    import jinja2

    raise jinja2.TemplateRuntimeError(str(message))


_REHEARSAL = (
    "{% for x in ['\\u00e9', 1.5] %}{% generation %}{{ x | string | urlencode | wordwrap(3) | indent | title }}{% endgeneration %}"
    "{% if loop.first %}{% continue %}{% endif %}{{ {'a': [x]} | tojson(indent=2) | pprint }}{% endfor %}"
    "{{ strftime_now('%d %b %Y %H:%M %A') }}{{ [1, 2] | random | round(1) }}{{ lipsum(n=1) | truncate(9) | striptags }}"
    "{{ 'a b' | wordcount }}{{ '%5.2f' | format(1.0) }}{{ [{'a': 1}] | groupby('a') | list | length }}{{ 3 | filesizeformat }}"
)


def rehearse() -> None:
    """Make Python and Jinja import now what they would import at first use: afterwards no file can be opened."""
    import jinja2
    import jinja2.debug
    import jinja2.meta

    request: dict[str, Any] = {
        "now": "2026-01-01",
        "kwargs": {},
        "messages": [],
        "tools": None,
        "add_generation_prompt": True,
    }
    render = Renderer(_REHEARSAL, {})
    inspect_template(render.tree)
    render(request)
    for text in (
        "{{ raise_exception('x') }}",
        "{{ 1 / 0 }}",
        "{{ x.y.z }}",
        "{% if %}",
        "{{ ''.__class__.mro() }}",
    ):
        with contextlib.suppress(jinja2.TemplateError, ZeroDivisionError):
            Renderer(text, {})(request)


def lock_down(memory_bytes: int, cpu_seconds: int) -> None:
    """Give up everything that a template could misuse; cannot be undone in this process."""
    os.environ.clear()
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def work(worker: Worker) -> dict[str, Any]:
    """Job: ``template, special_tokens, renders, encode, cost, tokenizer, memory_bytes, cpu_seconds``.

    Result: ``inspection``, ``renders`` (id -> ``text`` or ``error``), ``encoded`` (id -> token ids), ``cost``; or
    ``error`` alone when the template does not even compile.
    """
    import jinja2

    args = worker.args
    tokenizer = load_tokenizer(args["tokenizer"]) if args.get("tokenizer") else None
    rehearse()
    lock_down(args["memory_bytes"], args["cpu_seconds"])
    try:
        render = Renderer(args["template"], args["special_tokens"])
    except jinja2.TemplateSyntaxError as error:
        return {
            "error": {"kind": "syntax", "message": str(error.message or error)[:500], "line": error.lineno}
        }
    except (SyntaxError, RecursionError, MemoryError, OverflowError, ValueError) as error:
        return {
            "error": {
                "kind": "limit",
                "message": f"it cannot be compiled ({type(error).__name__})",
                "line": None,
            }
        }
    inspection = inspect_template(render.tree)
    render.content_as_parts = inspection["content_as_parts"]
    result: dict[str, Any] = {"inspection": inspection, "renders": {}, "encoded": {}, "cost": None}
    for request in args["renders"]:
        result["renders"][request["id"]] = attempt(render, request)
    if tokenizer is not None:
        for item in args["encode"]:
            ids = tokenizer.encode(item["text"], add_special_tokens=False).ids
            result["encoded"][item["id"]] = list(ids)
    if args.get("cost"):
        result["cost"] = cost(render, tokenizer, args["cost"])
    return result


def attempt(render: Renderer, request: dict[str, Any]) -> dict[str, Any]:
    """``{"text"}`` or ``{"error"}``: whatever a template can raise is the template's fault, not the worker's."""
    import jinja2

    try:
        text = render(request)
        render.total_chars += len(text)
        if render.total_chars > TOTAL_LIMIT_CHARS:
            raise MemoryError(f"its prompts are longer than {TOTAL_LIMIT_CHARS:,} characters in all")
        return {"text": text}
    except jinja2.TemplateError as error:
        kind, message = "refused", str(error.message or error)
    except MemoryError as error:
        kind, message = "limit", str(error) or "it needs more memory than it may have"
    except RecursionError:
        kind, message = "limit", "it calls itself without end"
    except Exception as error:  # noqa: BLE001  untrusted code may raise anything
        kind, message = "raised", f"{type(error).__name__}: {error}"
    return {"error": {"kind": kind, "message": message[:500], "line": None}}


def load_tokenizer(path: str) -> Any:
    """A ``tokenizer.json``. Raises WorkerFailure when the library is missing or the file is damaged."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise WorkerFailure(
            "The tokenizers package is not installed.",
            "pip install 'kvprobe[hf]' or compare text with --no-tokens.",
        ) from None
    try:
        return Tokenizer.from_file(path)
    except Exception as error:  # noqa: BLE001  the library raises bare Exception for damaged files
        raise WorkerFailure(f"{path} cannot be loaded as a tokenizer: {str(error)[:200]}.") from None


def cost(render: Renderer, tokenizer: Any, job: dict[str, Any]) -> dict[str, Any]:
    """CPU seconds of rendering and tokenising a chat of about ``job["tokens"]`` tokens, each sample kept."""
    per_token = 4.0  # characters; only used without a tokenizer, and reported as assumed

    def count(text: str) -> int:
        if tokenizer is None:
            return round(len(text) / per_token)
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    def request(turns: int) -> dict[str, Any]:
        messages = [m for _ in range(turns) for m in job["turn"]] + [job["turn"][0]]
        return {**job["request"], "messages": messages}

    try:
        few, many = count(render(request(2))), count(render(request(12)))
        turns = max(1, round((job["tokens"] - few) / max(1.0, (many - few) / 10)) + 2)
        wanted = request(turns)
        text = render(wanted)
    except Exception as error:  # noqa: BLE001  untrusted code may raise anything
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    steps: dict[str, Callable[[], Any]] = {"render": lambda: render(wanted)}
    if tokenizer is not None:
        steps["tokenise"] = lambda: tokenizer.encode(text, add_special_tokens=False)
    samples: dict[str, list[float]] = {}
    stop = time.perf_counter() + job["budget_seconds"]
    for index, (name, step) in enumerate(steps.items()):
        end = stop - job["budget_seconds"] * (len(steps) - 1 - index) / len(steps)
        samples[name] = timed(step, job["samples"], end)
    return {
        "tokens": count(text),
        "tokens_origin": "assumed" if tokenizer is None else "measured",
        "chars": len(text),
        "messages": len(wanted["messages"]),
        "render_seconds": samples["render"],
        "tokenise_seconds": samples.get("tokenise"),
    }


def timed(step: Callable[[], Any], samples: int, stop: float) -> list[float]:
    """CPU seconds of one call, ``samples`` times, at least five; fewer when ``stop`` (perf_counter) comes first.

    The thread's clock, because RLIMIT_CPU makes Linux count the process's clock in scheduler ticks of milliseconds.
    Each sample is the mean of as many calls as take a hundred of the clock's smallest steps.
    """
    tick = cpu_tick()
    for _ in range(3):
        step()
    calls, spent = 1, 0.0
    while spent < 100 * tick:
        start = time.thread_time()
        for _ in range(calls):
            step()
        spent = time.thread_time() - start
        if spent < 100 * tick:
            calls *= 2
    found: list[float] = []
    while len(found) < samples and (len(found) < 5 or time.perf_counter() < stop):
        start = time.thread_time()
        for _ in range(calls):
            step()
        found.append((time.thread_time() - start) / calls)
    return found


def cpu_tick() -> float:
    """The smallest step of the thread's CPU clock that can be seen, in seconds."""
    steps = []
    for _ in range(5):
        first = now = time.thread_time()
        while now == first:
            now = time.thread_time()
        steps.append(now - first)
    return min(steps)


if __name__ == "__main__":
    main(work)
