"""Where a model's config is found, and what is said when it is not."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kvprobe.errors import ProbeError, UsageError
from kvprobe.models.kv_layout import resolve
from kvprobe.probes.model_config import CONFIG_LIMIT_BYTES, load_model_config
from kvprobe.system import RecordingSystem, ReplaySystem, System

CONFIG = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2}


class Offline(System):
    """A machine whose hub answers what the test says; everything else is this machine."""

    def __init__(self, answer: dict[str, Any] | None = None) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    def observe(self, kind: str, key: Any, look: Callable[[], Any]) -> Any:
        if kind == "hub":
            self.asked.append(key)
            return self.answer or {"missing": "The hub did not answer (test)."}
        return look()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    return tmp_path / "hub"


def written(folder: Path, config: Any = CONFIG, name: str = "config.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


def test_a_directory_with_a_separate_quantization_file(tmp_path: Path) -> None:
    folder = written(tmp_path / "My-Model")
    written(folder, {"producer": {"name": "modelopt"}}, "hf_quant_config.json")
    found = load_model_config(System(), str(folder))
    assert found.facts.name == "My-Model"
    assert found.facts.hf_quant_config == {"producer": {"name": "modelopt"}}
    assert found.source.endswith("config.json")


def test_the_separate_file_counts_only_without_a_quantization_config(tmp_path: Path) -> None:
    folder = written(tmp_path / "m", {**CONFIG, "quantization_config": {"quant_method": "fp8"}})
    written(folder, {"producer": {"name": "modelopt"}}, "hf_quant_config.json")
    assert load_model_config(System(), str(folder)).facts.hf_quant_config is None


def test_a_file_of_any_name(tmp_path: Path) -> None:
    path = written(tmp_path, name="llama.json") / "llama.json"
    assert load_model_config(System(), str(path)).facts.name == "llama"


def test_the_hub_cache_comes_before_the_shipped_facts(cache: Path) -> None:
    model = cache / "models--Qwen--Qwen3-8B"
    written(model / "snapshots" / "abc123")
    written(model / "refs", "abc123", "main")
    found = load_model_config(Offline(), "Qwen/Qwen3-8B")
    assert found.facts.config == CONFIG
    assert found.source.startswith("hub cache, commit abc123")


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b-instruct", "gpt-oss-20b"])
def test_shipped_models_need_no_network(cache: Path, name: str) -> None:
    system = Offline()
    found = load_model_config(system, name)
    assert found.source.startswith("shipped with kvprobe: public config.json as found in ")
    assert system.asked == []
    assert resolve(found.facts).bytes_per_token.per_rank > 0


def test_every_shipped_model_has_a_source_and_a_layout() -> None:
    folder = Path(__file__).parent.parent.parent / "kvprobe" / "models" / "known_models"
    names = [json.loads(p.read_text())["name"] for p in sorted(folder.glob("*.json"))]
    assert len(names) >= 30
    for name in names:
        found = load_model_config(Offline(), name)
        assert found.facts.name == name
        assert resolve(found.facts).layer_groups


def test_an_unknown_name_asks_the_hub_and_then_names_its_likes(cache: Path) -> None:
    system = Offline()
    with pytest.raises(UsageError) as caught:
        load_model_config(system, "Qwen/Qwen2.5-7B-Instrukt")
    assert system.asked == [["Qwen/Qwen2.5-7B-Instrukt", None]]
    assert "Qwen/Qwen2.5-7B-Instruct" in caught.value.remedy


def test_offline_asks_nobody(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    system = Offline()
    with pytest.raises(UsageError, match="HF_HUB_OFFLINE"):
        load_model_config(system, "nobody/nothing")
    assert system.asked == []


def test_a_revision_is_not_answered_from_shipped_facts(cache: Path) -> None:
    system = Offline({"config": json.dumps(CONFIG), "commit": "f" * 40, "endpoint": "https://huggingface.co"})
    found = load_model_config(system, "Qwen/Qwen3-8B", revision="v2")
    assert system.asked == [["Qwen/Qwen3-8B", "v2"]]
    assert found.facts.config == CONFIG
    assert found.source == "https://huggingface.co/Qwen/Qwen3-8B at ffffffffffff"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("\x00\xff binary", "is not JSON"),
        ("[1, 2]", "holds no JSON object"),
        ("null", "holds no JSON object"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deeply"),
        ("1" * 5000, "is not JSON"),
    ],
)
def test_a_damaged_file_is_told_in_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    folder = written(tmp_path / "m", text)
    with pytest.raises(ProbeError, match=words) as caught:
        load_model_config(System(), str(folder))
    assert len(caught.value.reason) < 300


def test_a_hundred_megabytes_are_not_read(tmp_path: Path) -> None:
    folder = written(tmp_path / "m")
    with (folder / "config.json").open("wb") as stream:
        stream.truncate(100 * 1024 * 1024)
    with pytest.raises(ProbeError, match=f"larger than {CONFIG_LIMIT_BYTES // 1024**2} MiB"):
        load_model_config(System(), str(folder))


@pytest.mark.parametrize(("files", "words"), [([], "no config.json"), (["params.json"], "params.json")])
def test_a_directory_without_a_config(tmp_path: Path, files: list[str], words: str) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    for name in files:
        written(folder, name=name)
    with pytest.raises(UsageError, match=words):
        load_model_config(System(), str(folder))


@pytest.mark.parametrize("name", ["", "../nowhere", "a/b/c", "/no/such/dir", "name with spaces", "x" * 500])
def test_what_cannot_be_a_name(cache: Path, name: str) -> None:
    with pytest.raises((UsageError, ProbeError)):
        load_model_config(Offline(), name)


def test_a_recording_finds_the_model_anywhere(tmp_path: Path, cache: Path) -> None:
    recording = RecordingSystem(tmp_path / "record", {"command": "kvsize", "params": {}})
    live = load_model_config(recording, "gpt-oss-20b")
    recording.close()
    assert load_model_config(ReplaySystem(tmp_path / "record"), "gpt-oss-20b").facts == live.facts


class Hub(BaseHTTPRequestHandler):
    """The part of a hub that a config needs: files by path, error codes in the header, a commit."""

    files: ClassVar[dict[str, bytes]] = {}
    code: ClassVar[str] = "RepoNotFound"

    def do_GET(self) -> None:
        body = self.files.get(self.path)
        self.send_response(200 if body is not None else 404)
        if body is None:
            known = any(path.split("/resolve/")[0] == self.path.split("/resolve/")[0] for path in self.files)
            self.send_header("x-error-code", "EntryNotFound" if known else self.code)
        self.send_header("x-repo-commit", "c0ffee" * 6)
        self.send_header("content-length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    constants = pytest.importorskip("huggingface_hub.constants")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    Hub.files = {"/org/model/resolve/main/config.json": json.dumps(CONFIG).encode()}
    Hub.code = "RepoNotFound"
    yield Hub
    server.shutdown()
    server.server_close()


def test_a_model_of_the_hub(hub: type[Hub]) -> None:
    found = load_model_config(System(), "org/model")
    assert found.facts.config == CONFIG
    assert found.facts.hf_quant_config is None
    assert "org/model at c0ffeec0ffee" in found.source


def test_a_gated_model_says_how_to_get_in(hub: type[Hub]) -> None:
    hub.code = "GatedRepo"
    with pytest.raises(ProbeError, match="gated") as caught:
        load_model_config(System(), "org/other")
    assert "HF_TOKEN" in caught.value.remedy


def test_a_model_that_the_hub_does_not_know(hub: type[Hub]) -> None:
    with pytest.raises(UsageError, match="does not know it either"):
        load_model_config(System(), "org/other")


def test_a_config_of_the_hub_that_is_too_large(hub: type[Hub]) -> None:
    hub.files["/org/model/resolve/main/config.json"] = b" " * (CONFIG_LIMIT_BYTES + 1)
    with pytest.raises(ProbeError, match="larger than"):
        load_model_config(System(), "org/model")
