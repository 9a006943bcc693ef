"""``kvprobe live``: what a running deployment really adds, measured through its own servers."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.flows import Door, Draft
from kvprobe.flows.live_extras import four_hop_phase, load_phase, proxy_phase, turns_phase
from kvprobe.flows.live_predict import predictions, read_report
from kvprobe.flows.live_request import LiveRequest, check
from kvprobe.flows.live_result import evidence, facts_of, result, subject
from kvprobe.flows.live_session import Session
from kvprobe.flows.live_settle import settle_phase
from kvprobe.rules import live as hand_over
from kvprobe.rules import live_outcome, live_paths, live_prediction, live_tax
from kvprobe.rules.base import run_rules

_RULES = (
    *hand_over.RULES,
    *live_outcome.RULES,
    *live_tax.RULES,
    *live_prediction.RULES,
    *live_paths.RULES,
)


def live(door: Door, params: dict[str, Any]) -> Draft:
    """Drive the deployment and judge it. Raises UsageError for an impossible request, before any server is asked."""
    request = msgspec.convert(params, LiveRequest, strict=False)
    check(request)
    report = read_report(door.system, request.report) if request.report else None
    session = Session(door, request)
    try:
        session.identify()
        session.first_contact()
        settle_phase(session)
        session.measure()
        proxy_phase(session)
        turns_phase(session)
        four_hop_phase(session)
        load_phase(session)
    except KeyboardInterrupt:
        session.interrupt()
    finally:
        session.close()
    facts = facts_of(session, predictions(session, report), report)
    found = run_rules(_RULES, facts, door.policy)
    return Draft(
        subject=subject(session),
        findings=tuple(found),
        evidence=evidence(session),
        result=result(session, facts, report),
    )
