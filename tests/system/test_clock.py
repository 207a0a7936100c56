"""When a limit ends, from the texts of agents."""

from __future__ import annotations

from datetime import datetime

import pytest

from corral._system.clock import find_reset

NOW = datetime.fromisoformat("2026-10-08T14:13:20+00:00").timestamp()


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("Claude AI usage limit reached|1790000000", 1_790_000_000),
        ("You've hit your limit · resets 3pm (UTC)", at("2026-10-08T15:00:00+00:00")),
        ("5-hour limit reached ∙ resets 3am (UTC)", at("2026-10-09T03:00:00+00:00")),
        ("Limit reached · resets 4:30pm (Europe/Berlin)", at("2026-10-08T16:30:00+02:00")),
        ("Weekly limit reached ∙ resets Oct 9 at 5pm (UTC)", at("2026-10-09T17:00:00+00:00")),
        ("resets Jan 3, 9am (UTC)", at("2027-01-03T09:00:00+00:00")),
        ("try again at Nov 5th, 2026 9:00 AM (UTC)", at("2026-11-05T09:00:00+00:00")),
        ("resets 12am (UTC)", at("2026-10-09T00:00:00+00:00")),
        ("usage limit. Try again in 3 days 4 hours 5 minutes.", NOW + 273_900),
        ("Please try again in 20s. Visit …", NOW + 20),
        ("Please try again in 1.5s", NOW + 1.5),
        ("rate limit: try again in 120ms", NOW + 0.12),
        ("Please retry in 22.5s.", NOW + 22.5),
        ("Your quota will reset after 12h3m1s.", NOW + 43_381),
        ("available again in 2 hours and 30 minutes", NOW + 9000),
    ],
)
def test_the_texts_of_agents(text: str, moment: float) -> None:
    assert find_reset(text, NOW) == pytest.approx(moment, abs=0.01)


@pytest.mark.parametrize(
    "text",
    [
        "Too many requests",
        "resets 3pm (Nowhere/City)",
        "resets 25:00 (UTC)",
        "resets Feb 31 at 5pm (UTC)",
        "try again in a moment",
        "resets 3 times",
        "",
    ],
)
def test_other_texts_have_no_time(text: str) -> None:
    assert find_reset(text, NOW) is None


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime.fromtimestamp(NOW).astimezone()
    found = find_reset(f"try again at {local.hour:02}:{local.minute:02}", NOW)
    assert found is not None
    assert 86_400 - 60 <= found - NOW <= 86_400
