"""The registry of rules: ids never used twice, claims, and a page for each."""

from __future__ import annotations

import importlib
import re
from collections import Counter

import pytest

from kvprobe.assets import docs_dir
from kvprobe.rules import TOPICS, all_rules

RULES = all_rules()


def test_no_id_is_used_twice() -> None:
    assert [i for i, n in Counter(rule.id for rule in RULES).items() if n > 1] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_the_docstring_begins_with_the_id_and_a_claim(rule: object) -> None:
    claim, name, id_ = rule.claim, rule.name, rule.id  # type: ignore[attr-defined]
    assert re.match(rf"{id_}: \S", claim), f"{name}: the docstring must start with '{id_}: claim'"
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name), f"{name} is not kebab-case"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_has_its_page(rule: object) -> None:
    id_, name = rule.id, rule.name  # type: ignore[attr-defined]
    path = docs_dir() / f"{id_}.md"
    assert path.is_file(), (
        f"write kvprobe/docs/{id_}.md: '# {id_} {name}', then What it checks, Why it matters, What to do, Source"
    )
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith(f"# {id_} "), f"{path} must begin with '# {id_} {name}'"
    headings = [line[3:] for line in lines if line.startswith("## ")]
    assert headings[:4] == ["What it checks", "Why it matters", "What to do", "Source"], f"{path}: {headings}"


def test_no_page_without_a_rule() -> None:
    known = {rule.id for rule in RULES}
    assert sorted(p.stem for p in docs_dir().glob("KVP*.md") if p.stem not in known) == []


@pytest.mark.parametrize("topic", TOPICS)
def test_every_id_that_a_topic_mentions_as_its_own_is_registered(topic: str) -> None:
    module = importlib.import_module(f"kvprobe.rules.{topic}")
    assert module.RULES, f"{topic} registers nothing"
