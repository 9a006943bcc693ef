"""Starts prefill and decode of a real vLLM, runs preflight and live on them, and keeps reports, recordings and logs.

For a host with two free GPUs. Two passes: UCX as it chooses, and UCX_TLS=^cuda_ipc (the pass without NVLink). A pass is: preflight (its
prediction), the two servers, live with that report, the servers ended. Everything goes into $OUT: a summary text,
one JSON report a step, and one archive with recordings (for --replay) and server logs. Both passes take about five
minutes on a host that has not read the kit before: the first start of vLLM alone took 110 s there, the second 50 s.

    scripts/gpu-live --kit .kit                      a vLLM 0.30 kit, unpacked under /tmp first
    scripts/gpu-live --model Qwen/Qwen2.5-7B         a vLLM that is installed here
    scripts/gpu-live --prefill URL --decode URL      servers that run already: one pass, nothing is started

scripts/live_sample.py makes a scenario of a recording.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STARTED = time.monotonic()
PORTS = {"prefill": 8100, "decode": 8200}
SIDE_CHANNELS = {"prefill": "5600", "decode": "5601"}
PASSES = {"nvlink": ("", 2), "no-cuda-ipc": ("^cuda_ipc", 1)}
"""UCX_TLS, and rates tried under load: without a fast path two long prompts a second only queue up."""
SECOND_START = 0.75
"""A further pass takes at most this share of the first, which reads vLLM from disk."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kit", type=Path, help="folder with install.sh and the tar of a vLLM kit")
    parser.add_argument("--model", default="/tmp/kitdata/model7b")
    parser.add_argument("--serve", default="--load-format dummy --dtype bfloat16 --max-model-len 32768 --max-num-batched-tokens 8192 --gpu-memory-utilization 0.5 --no-enable-prefix-caching")  # fmt: skip
    parser.add_argument("--lengths", default="512,2048,8192")
    parser.add_argument("--requests", type=int, default=6)
    parser.add_argument("--load", default="5s")
    parser.add_argument("--passes", default="nvlink,no-cuda-ipc")
    parser.add_argument(
        "--budget", type=float, default=330.0, help="seconds; no new pass is begun that cannot end in time"
    )
    parser.add_argument("--no-preflight", action="store_true", help="no prediction beforehand")
    parser.add_argument("--prefill", help="URL of a server that runs already")
    parser.add_argument("--decode", help="URL of a server that runs already")
    options = parser.parse_args()
    out = Path(os.environ.get("OUT") or "gpu-live-out").resolve()
    out.mkdir(parents=True, exist_ok=True)
    work = Path("/tmp/gpu-live") if os.environ.get("OUT") else out / "work"
    work.mkdir(parents=True, exist_ok=True)
    run = Run(options, out, work)
    try:
        if options.kit:
            run.say("unpacking the kit")
            kits = sorted(map(str, options.kit.glob("vllm-*.tar")))
            subprocess.run(["bash", str(options.kit / "install.sh"), *kits], check=True)
            loguru = options.kit / "loguru.tar.gz"
            if loguru.exists():
                subprocess.run(["tar", "xzf", str(loguru), "-C", "/tmp/site"], check=True)
        if options.prefill and options.decode:
            run.live("running", {"prefill": options.prefill, "decode": options.decode}, {})
        else:
            for name in options.passes.split(","):
                run.one_pass(name, *PASSES[name])
        run.calibrate()
    finally:
        run.stop()
        run.pack()
    return run.worst


class Run:
    """What was started, and where its results go."""

    def __init__(self, options: argparse.Namespace, out: Path, work: Path) -> None:
        self.options, self.out, self.work = options, out, work
        self.servers: dict[str, subprocess.Popen[bytes]] = {}
        self.reports: list[Path] = []
        self.longest = 0.0
        self.worst = 0
        self.summary = (out / "summary.txt").open("w", encoding="utf-8", buffering=1)

    def say(self, text: str) -> None:
        line = f"[{time.monotonic() - STARTED:6.1f} s] {text}"
        print(line, flush=True)
        print(line, file=self.summary)

    def left(self) -> float:
        return self.options.budget - (time.monotonic() - STARTED)

    def one_pass(self, name: str, tls: str, ramp: int) -> None:
        began = time.monotonic()
        if self.left() < max(100.0, SECOND_START * self.longest):
            self.say(f"pass {name}: left out, {self.left():.0f} s are not enough")
            return
        more = {"UCX_TLS": tls} if tls else {}
        report: Path | None = None
        if not self.options.no_preflight:
            model = Path(self.options.model)
            target = str(model / "config.json") if model.is_dir() else self.options.model
            report = self.kvprobe(f"{name}-preflight", ["preflight", "--model", target, "--budget", "6s", "--diagnose", "off", "--no-ucx"], more)  # fmt: skip
        self.start(name, more)
        if self.wait(name):
            urls = {role: f"http://127.0.0.1:{port}" for role, port in PORTS.items()}
            self.live(name, urls, more, report, ramp)
        self.stop()
        self.longest = max(self.longest, time.monotonic() - began)

    def live(
        self, name: str, urls: dict[str, str], more: dict[str, str], report: Path | None = None, ramp: int = 2
    ) -> None:
        argv = [
            "live",
            "--prefill",
            urls["prefill"],
            "--decode",
            urls["decode"],
            "--prompt-tokens",
            self.options.lengths,
        ]
        argv += ["--requests", str(self.options.requests), "--load", self.options.load, "--ramp", str(ramp)]
        argv += [
            "--max-time",
            f"{max(30, min(120, self.left() - 15)):.0f}s",
            "--record",
            str(self.work / f"{name}-recording"),
        ]
        if report is not None and report.exists():
            argv += ["--report", str(report)]
        self.reports.append(self.kvprobe(f"{name}-live", argv, more))

    def calibrate(self) -> None:
        found = [str(r) for r in self.reports if r.exists()]
        if found:
            self.kvprobe(
                "calibrate", ["calibrate", *found[:1], "--save", str(self.out / "calibration.json")], {}
            )

    def kvprobe(self, name: str, argv: list[str], more: dict[str, str]) -> Path:
        """Run it, table to the summary, JSON to a file; the worst exit code is this script's."""
        target = self.out / f"{name}.json"
        self.say(f"kvprobe {' '.join(argv)}")
        command = [sys.executable, "-m", "kvprobe", *argv, "--write", f"json={target}", "--progress", "on"]
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment(more), capture_output=True, text=True, timeout=max(30.0, self.left()), check=False)  # fmt: skip
        except subprocess.TimeoutExpired:
            self.say(f"{name}: no time was left")
            return target
        print(done.stdout, file=self.summary)
        print(done.stdout + done.stderr[-3000:], flush=True)
        self.say(f"{name}: exit {done.returncode}")
        self.worst = max(self.worst, done.returncode)
        return target

    def start(self, name: str, more: dict[str, str]) -> None:
        for index, role in enumerate(PORTS):
            kv = {"kv_connector": "NixlConnector", "kv_role": ("kv_producer", "kv_consumer")[index]}
            graphs = {
                "mode": 0,
                "cudagraph_mode": "FULL_DECODE_ONLY",
                "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64],
            }
            argv = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", self.options.model]
            argv += [
                "--served-model-name",
                "m",
                "--host",
                "127.0.0.1",
                "--port",
                str(PORTS[role]),
                *self.options.serve.split(),
            ]
            argv += ["--kv-transfer-config", json.dumps(kv), "--compilation-config", json.dumps(graphs)]
            env = environment({
                **more,
                "CUDA_VISIBLE_DEVICES": str(index),
                "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
                "VLLM_NIXL_SIDE_CHANNEL_PORT": SIDE_CHANNELS[role],
                "VLLM_LOG_STATS_INTERVAL": "3",
                "VLLM_CACHE_ROOT": f"/tmp/vllm_cache_{role}",
                "TRITON_CACHE_DIR": f"/tmp/triton_{role}",
                "UCX_LOG_LEVEL": "info",
                "UCX_PROTO_INFO": "y",
            })  # fmt: skip
            log = (self.work / f"{name}-{role}.log").open("wb")
            self.servers[role] = subprocess.Popen(argv, env=env, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, process_group=0)  # fmt: skip
        self.say(f"pass {name}: servers started")

    def wait(self, name: str) -> bool:
        limit = time.monotonic() + min(200.0, max(30.0, self.left() - 60))
        for role, port in PORTS.items():
            while True:
                if self.servers[role].poll() is not None or time.monotonic() > limit:
                    self.say(f"pass {name}: {role} did not start, see its log")
                    print("\n".join(tail(self.work / f"{name}-{role}.log")), flush=True)
                    return False
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                        break
                except OSError:
                    time.sleep(0.5)
        self.say(f"pass {name}: both servers answer")
        return True

    def stop(self) -> None:
        """End the servers that this script started, each by its own process group."""
        for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            for server in self.servers.values():
                if server.poll() is None:
                    os.killpg(server.pid, sent)
            limit = time.monotonic() + 8
            while time.monotonic() < limit and any(s.poll() is None for s in self.servers.values()):
                time.sleep(0.1)
        self.servers.clear()

    def pack(self) -> None:
        with tarfile.open(self.out / "recordings-and-logs.tar.gz", "w:gz") as archive:
            archive.add(self.work, arcname="gpu-live")
        self.say("done")
        self.summary.close()


def environment(more: dict[str, str]) -> dict[str, str]:
    kit = "/tmp/site30:/tmp/site" if Path("/tmp/site30").is_dir() else ""
    path = ":".join(p for p in (str(ROOT), kit, os.environ.get("PYTHONPATH", "")) if p)
    fixed = {
        "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_HOST_IP": "127.0.0.1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "TOKENIZERS_PARALLELISM": "false",
        "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1",
        "LD_LIBRARY_PATH": ":".join(p for p in (os.environ.get("LD_LIBRARY_PATH", ""), "/usr/local/nvidia/lib64") if p),
    }  # fmt: skip
    return {**os.environ, **fixed, **more}


def tail(path: Path, lines: int = 40) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:] if path.exists() else []


if __name__ == "__main__":
    sys.exit(main())
