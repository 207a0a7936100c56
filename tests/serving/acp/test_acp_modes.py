"""The modes of a session never allow more than the allowance."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from corral._serving.acp.modes import modes_within
from corral.policy import Policy, Verdict, is_narrower

VERDICTS: st.SearchStrategy[Verdict | None] = st.sampled_from([None, "allow", "ask", "deny"])
POLICIES = st.builds(
    Policy,
    read=VERDICTS,
    write=VERDICTS,
    shell=VERDICTS,
    network=VERDICTS,
    mcp=VERDICTS,
    own_mcp=VERDICTS,
    allow_tools=st.sampled_from([None, (), ("shell",)]),
    shell_rules=st.sampled_from([(), ("allow git *", "deny git push *")]),
    network_hosts=st.sampled_from([(), ("pypi.org",)]),
    mode=st.sampled_from([None, "plan"]),
)


@given(POLICIES)
def test_every_mode_is_narrower_than_the_allowance(ceiling: Policy) -> None:
    modes = modes_within(ceiling, {"shell": "execute"})
    assert modes[0].policy == ceiling
    assert all(is_narrower(mode.policy, ceiling, {"shell": "execute"}) for mode in modes)
    assert len({mode.id for mode in modes}) == len(modes)


def test_read_only_has_no_rule_that_allows_a_command() -> None:
    ceiling = Policy(read="allow", write="allow", shell_rules=("allow git *", "deny git push *"))
    reads = next(mode for mode in modes_within(ceiling, {}) if mode.id == "reads")
    assert reads.policy.shell_rules == ("deny git push *",)
