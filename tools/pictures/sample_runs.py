"""Sessions as people have them, for the pictures of the page."""

from __future__ import annotations

import random
import time
from pathlib import Path

from support.stored_sessions import Transcript, write_session

from corral import events
from corral._core.spending import BudgetState
from corral._sessions.store import Meta
from corral.values import Usage

MAIN = "20261117-091200-7c41d2"
"""The session that the pictures show."""
DAY = 86_400

_PATCH = """\
diff --git a/src/shop/retry.py b/src/shop/retry.py
--- a/src/shop/retry.py
+++ b/src/shop/retry.py
@@ -12,13 +12,17 @@ class RetryPolicy:
     limit: int = 5
     first: float = 0.2

-    def delay(self, attempt: int) -> float:
-        return self.first * 2 ** attempt
+    def delay(self, attempt: int, *, jitter: Callable[[], float] = random.random) -> float:
+        \"\"\"Seconds before the next attempt, with full jitter.\"\"\"
+        longest = min(self.most, self.first * 2**attempt)
+        return longest * jitter()

     def should_retry(self, error: Exception, attempt: int) -> bool:
         if attempt >= self.limit:
             return False
-        return isinstance(error, TimeoutError)
+        if isinstance(error, HttpError):
+            return error.status in RETRYABLE
+        return isinstance(error, TimeoutError | ConnectionError)


 async def call(policy: RetryPolicy, action: Action) -> Response:
diff --git a/tests/test_retry.py b/tests/test_retry.py
--- a/tests/test_retry.py
+++ b/tests/test_retry.py
@@ -1,6 +1,10 @@
 from shop.retry import RetryPolicy


-def test_delay_doubles() -> None:
-    policy = RetryPolicy(first=1.0)
-    assert [policy.delay(n) for n in range(3)] == [1.0, 2.0, 4.0]
+def test_delay_doubles_up_to_a_limit() -> None:
+    policy = RetryPolicy(first=1.0, most=3.0)
+    assert [policy.delay(n, jitter=lambda: 1.0) for n in range(3)] == [1.0, 2.0, 3.0]
+
+
+def test_delay_has_jitter() -> None:
+    assert RetryPolicy(first=1.0).delay(0, jitter=lambda: 0.25) == 0.25
"""

PATCH = "".join(f"{line or ' '}\n" for line in _PATCH.splitlines())
"""Context lines begin with a space, also those of empty lines."""

ANSWER = """\
The test failed because `RetryPolicy.delay` had **no upper limit and no jitter**: parallel clients \
retried at the same moment, and the fifth attempt came after the deadline of the test.

What changed:

1. `delay` is limited by `most` and multiplied by a random factor (*full jitter*).
2. HTTP 429, 502, 503 and 504 are retried; other statuses are not.
3. The tests pass their own `jitter`, so that they do not depend on chance.

| Test | before | after |
|---|---:|---:|
| `test_retry.py`, 200 runs | 17 failures | 0 failures |
| slowest run | 31.8 s | 1.4 s |

```python
policy = RetryPolicy(first=0.2, most=5.0)
await call(policy, action)
```
"""

PLAN = (
    events.PlanEntry("Reproduce the failure with 200 runs", "completed"),
    events.PlanEntry("Find out which attempt passes the deadline", "completed"),
    events.PlanEntry("Limit the delay and add jitter", "completed"),
    events.PlanEntry("Run the whole test suite", "in_progress"),
    events.PlanEntry("Describe the change in CHANGELOG.md", "pending"),
)


def write_main_session(home: Path, now: float) -> None:
    """Tool calls of each kind, a sub-agent, permissions, a plan, a diff, an answer."""
    found = Transcript(started=now - 260)
    found.init(cwd="/home/ada/shop")
    found.prompt("The test `test_retry.py` fails about once in ten runs. Find out why and fix it.")
    found.add(
        events.Thinking(
            delta="A flaky test of a retry policy: time or randomness. First reproduce it, then"
            " look at how the delay is computed and which clock the test uses."
        )
    )
    found.text("I will reproduce the failure first, then read the retry code.")
    found.add(events.Plan(entries=PLAN))
    found.tool(
        events.ToolUse(
            call_id="c1",
            name="run_shell_command",
            kind="execute",
            input={"command": "pytest tests/test_retry.py --count 200 -q"},
        ),
        events.ToolResult(
            call_id="c1",
            status="error",
            error="17 failed, 183 passed in 31.82s\nProcess exited with code 1",
            duration_ms=31_820,
        ),
    )
    found.tool(
        events.ToolUse(call_id="c2", name="read_file", kind="read", paths=("src/shop/retry.py",)),
        events.ToolResult(
            call_id="c2", status="success", output="class RetryPolicy:\n    …", duration_ms=4
        ),
    )
    task = events.ToolUse(
        call_id="c3", name="task", kind="think", title="Find all callers of RetryPolicy"
    )
    found.add(task)
    for number, path in enumerate(("src/shop/client.py", "src/shop/payments.py"), 1):
        call = f"s{number}"
        found.add(
            events.ToolUse(call_id=call, name="search", kind="search", paths=(path,), parent="c3")
        )
        found.add(
            events.ToolResult(
                call_id=call, status="success", output="3 matches", duration_ms=38, parent="c3"
            )
        )
    found.text("Both callers pass `limit=5` and no deadline of their own.", parent="c3")
    found.add(events.ToolResult(call_id="c3", status="success", output="2", duration_ms=5_300))
    found.add(
        events.PermissionRequest(
            request_id="p1",
            call_id="c4",
            kind="edit",
            title="Edit src/shop/retry.py",
            input={"path": "src/shop/retry.py"},
        )
    )
    found.add(
        events.PermissionDecision(
            request_id="p1", call_id="c4", decision="allow_once", by="policy", rule="edit(src/**)"
        )
    )
    for call, path, added, removed in (
        ("c4", "src/shop/retry.py", 7, 3),
        ("c5", "tests/test_retry.py", 7, 3),
    ):
        found.tool(
            events.ToolUse(call_id=call, name="replace", kind="edit", paths=(path,)),
            events.ToolResult(call_id=call, status="success", duration_ms=12),
        )
        found.add(
            events.FileChange(
                path=f"/home/ada/shop/{path}",
                kind="modified",
                call_id=call,
                lines_added=added,
                lines_removed=removed,
            )
        )
    found.add(
        events.PermissionRequest(
            request_id="p2", call_id="c6", kind="execute", title="git push --force"
        )
    )
    found.add(
        events.PermissionDecision(
            request_id="p2",
            call_id="c6",
            decision="deny",
            by="policy",
            rule="deny shell(git push*)",
        )
    )
    found.tool(
        events.ToolUse(
            call_id="c7",
            name="run_shell_command",
            kind="execute",
            input={"command": "pytest tests/test_retry.py --count 200 -q"},
        ),
        events.ToolResult(
            call_id="c7", status="success", output="200 passed in 1.41s", duration_ms=1_410
        ),
    )
    found.text(ANSWER)
    usage = Usage(
        input=184_200, output=6_900, reasoning=2_100, cache_read=141_000, coverage="complete"
    )
    found.add(events.UsageReport(usage=usage, context_size=61_400))
    found.done(usage, 0.1934)
    meta = Meta(
        id=MAIN,
        agent="gemini-cli",
        cwd="/home/ada/shop",
        created=now - 260,
        updated=found.now,
        status="success",
        model="gemini-2.5-pro",
        title="The test test_retry.py fails about once in ten runs. Find out why and fix it.",
        turns=1,
        session_id="5f0c6a6e-1d6f-4d4e-9c39-7b6c4e1f2a55",
        spent=usage,
        budgets=(BudgetState(max_cost=0.5, max_calls=40, cost=0.1934, tokens=191_100, calls=11),),
    )
    write_session(home, meta, found.events, [PATCH])


TASKS: tuple[tuple[str, str, str, events.Status], ...] = (
    ("Add pagination to the orders endpoint", "gemini-cli", "gemini-2.5-pro", "success"),
    ("Explain how sessions are resumed", "gemini-cli", "gemini-2.5-flash", "success"),
    ("Upgrade SQLAlchemy to 2.1 and fix the deprecations", "claude", "claude-sonnet-5", "success"),
    ("Write a migration for the invoices table", "codex", "gpt-5.5", "success"),
    ("Find the memory leak in the importer", "gemini-cli", "gemini-2.5-pro", "timeout"),
    ("Review the pull request about rate limits", "claude", "claude-sonnet-5", "success"),
    ("Translate the error messages into German", "opencode", "gemini-2.5-flash", "success"),
    ("Delete the legacy billing module", "codex", "gpt-5.5", "denied"),
    ("Make the Docker image smaller", "gemini-cli", "gemini-2.5-pro", "success"),
    ("Why does the nightly build fail?", "gemini-cli", "gemini-2.5-flash", "error"),
    ("Add type hints to shop.pricing", "claude", "claude-sonnet-5", "success"),
    ("Describe the API in OpenAPI", "opencode", "gemini-2.5-flash", "success"),
)
PROJECTS = ("shop", "billing", "docs", "importer")


def write_other_sessions(home: Path, now: float, days: int = 30) -> None:
    """Sessions of the last days, with usage."""
    chance = random.Random(7)
    for day in range(days):
        for number in range(chance.choice((0, 1, 2, 2, 3, 4))):
            title, agent, model, status = chance.choice(TASKS)
            created = now - day * DAY - chance.randint(900, 30_000)
            folder = f"/home/ada/{chance.choice(PROJECTS)}"
            found = Transcript(agent, created).init(model, folder).prompt(title)
            found.text("Done. The details are in the diff.")
            size = chance.randint(8_000, 240_000)
            usage = Usage(
                input=size,
                output=size // 18,
                cache_read=int(size * chance.uniform(0.3, 0.8)),
                coverage="complete",
            )
            problem = events.Error(code="rate_limited", message="the quota of the day is used up")
            if status == "error":
                found.add(problem)
            found.done(usage, size * 1.4e-6, status)
            meta = Meta(
                id=f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(created))}-{day:02d}{number:02d}",
                agent=agent,
                cwd=folder,
                created=created,
                updated=found.now,
                status=status,
                model=model,
                title=title,
                turns=1,
                spent=usage,
            )
            write_session(home, meta, found.events)


def write_sample_runs(home: Path) -> None:
    now = time.time()
    write_main_session(home, now)
    write_other_sessions(home, now)
