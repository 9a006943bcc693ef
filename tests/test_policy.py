"""Policies: strict reading with suggestions, layers with origins, waivers that end, judging again."""

from __future__ import annotations

import datetime

import msgspec
import pytest

from kvprobe.assets import checks_dir
from kvprobe.cli.settings import load_profile
from kvprobe.errors import UsageError
from kvprobe.finding import Expected, Quantity, Status
from kvprobe.policy import Policy, apply_waivers, cited_key, overlay, parse_policy, rejudge
from tests.reports import finding

TODAY = datetime.date(2026, 11, 29)
BASE = parse_policy(
    """
    name = "base"
    required = ["KVP203"]
    [thresholds.transfer_8k_seconds]
    unit = "s"
    warn_above = 0.075
    fail_above = 0.2
    source = "vLLM P/D guide"
    """,
    "base.toml",
)


def read(text: str) -> Policy:
    return parse_policy(f'extends = "base"\n{text}', "our.toml", lambda name: BASE)


@pytest.mark.parametrize("name", sorted(p.stem for p in (checks_dir() / "profiles").glob("*.toml")))
def test_every_profile_loads_and_names_the_source_of_each_threshold(name: str) -> None:
    policy = load_profile(name)
    assert policy.name == name and policy.description
    assert all(len(t.source) > 20 for t in policy.thresholds.values())
    assert policy.required


def test_the_profiles_of_the_issue_are_there() -> None:
    names = {p.stem for p in (checks_dir() / "profiles").glob("*.toml")}
    assert {"default", "strict", "nvlink", "pcie", "rdma", "ci-gate", "cron"} <= names


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('nam = "x"', "unknown key 'nam'. Did you mean 'name'?"),
        ("[thresholds.transfer_8k_second]\nwarn_above = 1", "Did you mean 'transfer_8k_seconds'?"),
        ("[thresholds.transfer_8k_seconds]\nwarn_abov = 1", "unknown key 'warn_abov'. Did you mean 'warn_above'?"),
        ('[[waivers]]\ncheck = "KVP203"\nreason = "x"\nuntill = 2027-01-01', "Did you mean 'until'?"),
        ('[[waivers]]\ncheck = "KVP203"\nuntil = 2027-01-01', "reason"),
        ('[[waivers]]\ncheck = "KVP203"\nreason = " "\nuntil = 2027-01-01', "gives no reason"),
        ('[[waivers]]\ncheck = "KVP203"\nreason = "x"', "until"),
        ('[[waivers]]\ncheck = "nixl"\nreason = "x"\nuntil = 2027-01-01', "is not the id of a check"),
        ('required = ["203"]', "is not the id of a check"),
        ('fail_on = "never"', "never"),
        ("[thresholds.transfer_8k_seconds]\nwarn_above = nan", "nan"),
        ("[thresholds.transfer_8k_seconds]\nwarn_above = 0.5", "is passed before"),
        ("[thresholds.transfer_8k_seconds]\nwarn_above = '0.5'", "float"),
        ("thresholds = 3", "is a table"),
        ("[thresholds]\ntransfer_8k_seconds = 3", "must be a table"),
        ("x = [", "not valid TOML"),
        ('schema = "kvprobe.policy/v2"', "kvprobe.policy/v2"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(text: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(text)
    assert told in str(caught.value)
    assert "our.toml" in str(caught.value)


def test_layers_keep_what_they_do_not_set_and_remember_who_set_what() -> None:
    policy = read("[thresholds.transfer_8k_seconds]\nfail_above = 0.1")
    threshold = policy.threshold("transfer_8k_seconds")
    assert (threshold.warn_above, threshold.fail_above, threshold.unit) == (0.075, 0.1, "s")
    assert threshold.source == "set in our.toml"
    assert policy.origins["thresholds.transfer_8k_seconds.fail_above"] == "our.toml"
    assert policy.origins["thresholds.transfer_8k_seconds.warn_above"] == "base.toml"
    assert policy.required == ("KVP203",)


def test_optional_thresholds_may_be_set() -> None:
    assert (
        read("[thresholds.ttft_tax_seconds]\nfail_above = 0.3").threshold("ttft_tax_seconds").fail_above
        == 0.3
    )


def waived(until: str) -> Policy:
    return read(f'[[waivers]]\ncheck = "KVP203"\nreason = "WRITE only"\nuntil = {until}')


def test_a_waiver_excuses_until_its_day_and_not_after() -> None:
    (same,) = apply_waivers((finding(),), waived("2026-11-29"), TODAY)
    assert same.status is Status.PASS and any("WRITE only" in n for n in same.notes)
    (ended,) = apply_waivers((finding(),), waived("2026-11-28"), TODAY)
    assert ended.status is Status.FAIL and any("expired" in n for n in ended.notes)


def test_a_waiver_does_not_make_the_unmeasured_go() -> None:
    (unknown,) = apply_waivers((finding(Status.UNKNOWN),), waived("2027-01-01"), TODAY)
    assert unknown.status is Status.UNKNOWN


def test_judging_again_moves_only_what_names_its_threshold() -> None:
    cited = finding(
        measured=Quantity(value=0.09, unit="s"),
        status=Status.WARN,
        expected=Expected(source=BASE.cite("transfer_8k_seconds"), max=0.075, unit="s"),
    )
    other = finding(id="KVP301", expected=Expected(source="rung 1"), measured=Quantity(value=0.09, unit="s"))
    policy = read("[thresholds.transfer_8k_seconds]\nwarn_above = 0.05\nfail_above = 0.08")
    (first, second), moved = rejudge((cited, other), policy)
    assert (first.status, second.status, moved) == (Status.FAIL, Status.FAIL, 1)
    assert first.expected and first.expected.max == 0.08
    assert any("was warn" in note for note in first.notes)
    loose = overlay(
        policy, {"thresholds": {"transfer_8k_seconds": {"warn_above": 1.0, "fail_above": 2.0}}}, "x"
    )
    assert rejudge((first,), loose)[0][0].status is Status.PASS


def test_judging_again_never_excuses_what_failed_for_another_reason() -> None:
    inside = finding(
        measured=Quantity(value=0.01, unit="s"),
        expected=Expected(source=BASE.cite("transfer_8k_seconds"), max=0.2),
    )
    unknown = finding(Status.UNKNOWN, expected=Expected(source=BASE.cite("transfer_8k_seconds"), max=0.2))
    (first, second), moved = rejudge((inside, unknown), BASE)
    assert (first.status, second.status, moved) == (Status.FAIL, Status.UNKNOWN, 0)


def test_judging_again_undoes_the_old_waiver_first() -> None:
    excused = apply_waivers((finding(expected=None),), waived("2027-01-01"), TODAY)
    assert rejudge(excused, BASE)[0][0].status is Status.FAIL


def test_the_cited_key_reads_back() -> None:
    assert cited_key(BASE.cite("transfer_8k_seconds")) == "transfer_8k_seconds"
    assert cited_key("rung 1 of the same run") is None


def test_a_policy_survives_the_round_trip_through_builtins() -> None:
    policy = waived("2027-01-01")
    again = msgspec.convert(msgspec.to_builtins(policy), Policy)
    assert again.waivers == policy.waivers
