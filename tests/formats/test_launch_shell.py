"""Shell scripts as people write them: what each program would get, and from where."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprobe.errors import FormatError
from kvprobe.formats.launch_files import read_launch
from kvprobe.formats.launch_model import Command


def commands(text: str, **files: str) -> list[Command]:
    others = {name.replace("__", "."): content for name, content in files.items()}
    return [c for c in read_launch({"a.sh": text, **others}).commands if c.file == "a.sh"]


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ("vllm serve m --port 8000", ("vllm", "serve", "m", "--port", "8000")),
        ("vllm serve m \\\n  --port \\\n  8000 # why\n", ("vllm", "serve", "m", "--port", "8000")),
        ("X='a b'\nvllm serve $X", ("vllm", "serve", "a", "b")),
        ("X='a b'\nvllm serve \"$X\"", ("vllm", "serve", "a b")),
        ("vllm serve '$X'", ("vllm", "serve", "$X")),
        ("vllm serve ${X:-m} --port ${P:=81} -tp $P", ("vllm", "serve", "m", "--port", "81", "-tp", "81")),
        ("vllm serve ${X}", ("vllm", "serve", "${X}")),
        ("vllm serve m --host $(hostname -I | awk '{print $1}') -q x", ("vllm", "serve", "m", "--host", "$(hostname -I | awk '{print $1}')", "-q", "x")),
        ("A=(--port 1)\nA+=(-tp 2)\nvllm serve m \"${A[@]}\"", ("vllm", "serve", "m", "--port", "1", "-tp", "2")),
        ("P=8100\nvllm serve m --port $((P + 2*3))", ("vllm", "serve", "m", "--port", "8106")),
        ("vllm serve m --x '{\"a\": \"b\n c\"}'", ("vllm", "serve", "m", "--x", '{"a": "b\n c"}')),
        ('vllm serve m --x "{\\"a\\": \\"$Y\\"}"', ("vllm", "serve", "m", "--x", '{"a": "$Y"}')),
        ("sudo -E env A=1 nohup numactl -N 0 vllm serve m > log 2>&1 &", ("vllm", "serve", "m")),
        ("A=$(echo \"it's\" 'a\"b' # it's\n)\nvllm serve m --x $'it\\'s'", ("vllm", "serve", "m", "--x", "it's")),
        ("bash -c 'vllm serve m --port 1'", ("vllm", "serve", "m", "--port", "1")),
        ("tmux new -d -s p 'vllm serve m'", ("vllm", "serve", "m")),
        ("eval \"vllm serve m --x '{}' &\"", ("vllm", "serve", "m", "--x", "{}")),
        ("f() { vllm serve \"$1\" --port $2; }\nf m 81", ("vllm", "serve", "m", "--port", "81")),
        ("cat <<EOF > x\nvllm serve wrong\nEOF\nvllm serve m", ("vllm", "serve", "m")),
        ("ssh -p 22 me@node-b 'vllm serve m'", ("vllm", "serve", "m")),
        ("python3 -u -m vllm.entrypoints.openai.api_server --model m", ("python3", "-u", "-m", "vllm.entrypoints.openai.api_server", "--model", "m")),
    ],
)  # fmt: skip
def test_words(text: str, argv: tuple[str, ...]) -> None:
    assert [c.argv for c in commands(text)] == [argv]


def test_environment_from_everywhere_with_its_place() -> None:
    text = "export A=1 B=2\nset -a\n. ./common.env\nset +a\nD=4\nunset B\nA=9 vllm serve m\n"
    (command,) = commands(text, common__env="C=3\n")
    assert {k: (s.value, s.where) for k, s in command.env.items()} == {
        "A": ("9", "a.sh line 7"),
        "C": ("3", "common.env line 1"),
    }


def test_what_another_script_starts_is_counted_once() -> None:
    launch = read_launch(
        {"run.sh": "PORT=81 bash ./p.sh prefill &\n", "p.sh": "vllm serve m --port ${PORT} --x $1\n"}
    )
    (command,) = launch.commands
    assert command.argv == ("vllm", "serve", "m", "--port", "81", "--x", "prefill")
    assert command.file == "p.sh" and command.background


def test_loops_are_unrolled_and_unknown_ones_marked() -> None:
    text = "for i in 0 1; do CUDA_VISIBLE_DEVICES=$i vllm serve m --port $((8100+i)) & done\nfor x in $LIST; do vllm serve $x; done"
    found = commands(text)
    assert [(c.argv[-1], c.repeats) for c in found] == [("8100", False), ("8101", False), ("$x", True)]
    assert [c.env["CUDA_VISIBLE_DEVICES"].value for c in found[:2]] == ["0", "1"]


def test_branches_that_the_text_decides() -> None:
    text = 'M=${M:-a}\nif [[ "$M" == "a" ]]; then P=1; elif [ "$M" = b ]; then P=2; else P=3; fi\nif [ -n "$TP" ]; then P=9; fi\nvllm serve m --port $P'
    assert commands(text)[0].argv[-1] == "1"
    both = commands("if curl -s x; then vllm serve a; else vllm serve b; fi")
    assert [c.argv[-1] for c in both] == ["a", "b"]


def test_case_patterns_comments_and_logs_are_hints() -> None:
    text = 'case "$ROLE" in\nprefill) vllm serve m ;;\ndecode)\n vllm serve m ;;\nesac\n# the decoder\nvllm serve m > decode.log 2>&1\n'
    assert [c.hints[:2] for c in commands(text)] == [("prefill",), ("decode",), ("the decoder", "decode.log")]


def test_docker_run() -> None:
    text = (
        "docker run -d --rm --name p1 --gpus '\"device=0,1\"' --network=host --ipc=host --pid host -p 1:1 -v /a:/a\\\n"
        " --env-file e.env -e A=1 -e B vllm/vllm-openai:v0.30.0 --model m --port 81\n"
    )
    (command,) = commands(f"export B=5\n{text}", e__env="C=3\n")
    assert command.argv == ("--model", "m", "--port", "81")
    assert {k: s.value for k, s in command.env.items()} == {"A": "1", "B": "5", "C": "3"}
    box = command.box
    assert box is not None and box.default_entrypoint
    assert (box.gpus, box.network_host, box.pid, box.ipc, box.image) == (
        "device=0,1", True, "host", "host", "vllm/vllm-openai:v0.30.0",
    )  # fmt: skip


def test_a_typographic_quote_is_named_and_the_rest_still_read() -> None:
    launch = read_launch({"a.sh": 'vllm serve m --x \'{"a":1}’\nvllm serve n --x \'{"b":1}\'\n'})
    (problem,) = launch.problems
    assert (problem.code, problem.where) == ("typographic_quote", "a.sh line 1")
    assert [c.argv[-1] for c in launch.commands] == ['{"a":1}', '{"b":1}']


def test_curly_quotes_in_comments_and_messages_are_nobodys_business() -> None:
    launch = read_launch({"a.sh": "# it’s “fine”\necho “hi”\nvllm serve m\n"})
    assert launch.problems == () and len(launch.commands) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a " * 300_000, "200,000 words"),
        ("for a in {1..64}; do for b in {1..64}; do for c in {1..64}; do vllm serve m; done; done; done", "5,000 programs"),
        ("A=(x)\n" + 'A+=("${A[@]}" "${A[@]}")\n' * 30 + 'vllm serve "${A[@]}"', "10,000 items"),
        (". a.sh\n", "levels deep"),
        ("\x00\x01\x02ELF" * 10, "not text"),
        ("", "is empty"),
    ],
)  # fmt: skip
def test_hostile_scripts_end_in_one_sentence(text: str, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        read_launch({"a.sh": text})


def test_strings_that_double_are_cut() -> None:
    (command,) = commands("A=xxxxxxxxxx\n" + "A=$A$A$A$A$A$A$A$A\n" * 20 + 'vllm serve "$A"')
    assert len(command.argv[2]) <= 1_000_000


@given(st.text(alphabet="ab$(){}[]'\"\\`;&|<>#=\n \t!*?’-", max_size=120))
def test_no_text_makes_the_reader_fail_otherwise(text: str) -> None:
    with contextlib.suppress(FormatError):
        read_launch({"a.sh": f"x {text}"})
