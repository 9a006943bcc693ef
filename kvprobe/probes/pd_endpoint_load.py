"""Long decode streams while long prompts arrive: one window of one way at one rate, over real connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from kvprobe.models.paired_load import Arrival, Window, gaps_within
from kvprobe.probes.pd_endpoint import Endpoints
from kvprobe.probes.pd_endpoint_drive import Ask, Timed, alone_request, make_ask, pd_request
from kvprobe.system import System

STREAM_PROMPT_TOKENS = 512
_WARM_TOKENS = 8
_START_SECONDS = 20.0


class Load:
    """What one window needs to know of the run."""

    def __init__(
        self,
        system: System,
        ends: Endpoints,
        *,
        seed: int,
        model: str,
        api: str,
        prompt_tokens: int,
        output_tokens: int,
        stream_tokens: int,
        alone_roles: tuple[str, ...],
    ) -> None:
        self.system, self.ends = system, ends
        self.prompt_tokens, self.output_tokens, self.stream_tokens = (
            prompt_tokens,
            output_tokens,
            stream_tokens,
        )
        self.alone_roles = alone_roles
        self._make: Callable[[str, int], Ask] = lambda label, tokens: make_ask(
            seed, label, tokens, model, api
        )

    def window(self, way: str, rate: float, seconds: float, streams: int) -> tuple[Window, list[Timed]]:
        """Streams first; once they flow, ``rate`` arrivals a second for ``seconds``; then everything ends."""
        label = f"load {way} {rate:g}/s"
        stop = threading.Event()
        flowing = [0] * streams
        running, arrived = _Results(), _Results()
        long = [
            running.start(self._stream, f"{label} stream {k}", way, k, stop, flowing) for k in range(streams)
        ]
        self._wait(lambda: min(flowing, default=_WARM_TOKENS) >= _WARM_TOKENS, long, _START_SECONDS)
        begin = self._clock(f"{label} begin")
        short = []
        for k in range(max(1, round(rate * seconds))):
            self._sleep_until(begin + k / rate)
            short.append(arrived.start(self._arrival, f"{label} arrival {k}", way, k))
        for thread in short:
            thread.join()
        end = self._clock(f"{label} end")
        stop.set()
        for thread in long:
            thread.join()
        done = [*running.values(), *arrived.values()]
        window = Window(
            way=way,
            rate=rate,
            seconds=end - begin,
            streams=streams,
            gaps=tuple(g for one in running.values() for g in gaps_within(one.token_times, begin, end)),
            arrivals=tuple(_arrival_of(one) for one in arrived.values()),
        )
        return window, done

    def _stream(self, label: str, way: str, k: int, stop: threading.Event, flowing: list[int]) -> Timed:
        def until() -> bool:
            flowing[k] += 1
            return stop.is_set()

        ask = self._make(label, STREAM_PROMPT_TOKENS)
        if way == "pd":
            return pd_request(self.ends, ask, self.stream_tokens, until=until, touch=False)
        role = self.alone_roles[k % len(self.alone_roles)]
        return alone_request(self.ends, role, ask, self.stream_tokens, until=until, touch=False)

    def _arrival(self, label: str, way: str, k: int) -> Timed:
        ask = self._make(label, self.prompt_tokens)
        if way == "pd":
            return pd_request(self.ends, ask, self.output_tokens, touch=False)
        role = self.alone_roles[k % len(self.alone_roles)]
        return alone_request(self.ends, role, ask, self.output_tokens, touch=False)

    def _clock(self, label: str) -> float:
        return float(self.system.observe("run_clock", label, self.ends.now))

    def _sleep_until(self, at: float) -> None:
        if self.system.replayed_from is None:
            time.sleep(max(0.0, at - self.ends.now()))

    def _wait(self, ready: Callable[[], bool], threads: list[threading.Thread], seconds: float) -> None:
        if self.system.replayed_from is not None:
            return
        limit = self.ends.now() + seconds
        while not ready() and self.ends.now() < limit and any(t.is_alive() for t in threads):
            time.sleep(0.01)


class _Results:
    """Threads and what they returned, in the order started; an exception of one is raised by ``values``."""

    def __init__(self) -> None:
        self._found: list[Timed | None] = []
        self._errors: list[BaseException] = []

    def start(self, function: Callable[..., Timed], *args: Any) -> threading.Thread:
        index = len(self._found)
        self._found.append(None)

        def run() -> None:
            try:
                self._found[index] = function(*args)
            except BaseException as error:  # noqa: BLE001  handed to the thread that waits
                self._errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def values(self) -> list[Timed]:
        if self._errors:
            raise self._errors[0]
        return [one for one in self._found if one is not None]


def _arrival_of(one: Timed) -> Arrival:
    if one.failure is not None or one.ttft_seconds is None:
        return Arrival(ttft_seconds=None)
    gaps = one.itl_seconds
    return Arrival(ttft_seconds=one.ttft_seconds, tpot_seconds=sum(gaps) / len(gaps) if gaps else None)
