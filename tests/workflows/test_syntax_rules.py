"""What a drafted workflow may contain: attempts to get out, and what people write."""

from __future__ import annotations

import pytest

from corral._workflows import definition
from corral._workflows.drafted import Bounds, find_bounds, with_mark
from corral._workflows.syntax_rules import find_problems, read_outline
from corral.errors import ConfigError

BOUNDS = Bounds(agents=("gemini-cli", "openai:gpt-5"), steps=9, runs=3, cost=1.5)
HEAD = """\
import corral
import json
import re
import shlex
from dataclasses import dataclass, field
from typing import Literal
from corral.errors import StepError
from corral.workflows import Flow
"""
GOOD = (
    HEAD
    + '''
AGENT = "gemini-cli"
VIEWS = ["security", "style"]


@dataclass
class Task:
    title: str
    files: list[str] = field(default_factory=list)
    size: Literal["small", "large"] = "small"


@dataclass
class Plan:
    tasks: list[Task]


def prompt_for(task: Task) -> str:
    return f"Do {task.title!r} in {', '.join(sorted(task.files))}"


@corral.workflow
async def fix(flow: Flow, issue: str, agent: str = "gemini-cli", rounds: int = 3) -> str:
    """Fix an issue."""
    plan = await flow.run(agent, f"Plan: {issue}", policy="reads", output=Plan, name="plan")
    done = []

    async def one(task: Task) -> str:
        try:
            made = await flow.run(AGENT, prompt_for(task), policy="edits", worktree=True)
        except StepError as error:
            return error.message
        return made.branch

    done.extend(await flow.parallel([one(task) for task in plan.tasks], max_parallel=2))
    for number in range(rounds):
        check = await flow.command(f"test -e {shlex.quote(done[0])}", name="check")
        if check.ok:
            break
        text = await flow.generate("openai:gpt-5", check.stdout[-100:] + str(number))
        found = re.search("a+", text)
        done.append(found.group(0) if found else json.dumps({"number": number}))
    answer = await flow.ask("Good?", ["yes", "no"])
    await flow.sleep("1s")
    return answer if answer != "no" else answer.comment
'''
)


def in_body(code: str) -> str:
    lines = "\n".join(f"    {line}" for line in code.split("\n"))
    return (
        f"{HEAD}\n@corral.workflow\nasync def bad(flow: Flow, x: str = 'a') -> object:\n{lines}\n"
    )


def test_what_people_write_is_allowed() -> None:
    assert find_problems(GOOD, BOUNDS.agents) == []


INSIDE = [
    "import os",
    "from os import system",
    "return __import__('os').system('id')",
    "return eval('1')",
    "return exec('x = 1')",
    "return compile('1', 'a', 'eval')",
    "return open('/etc/passwd')",
    "return getattr(flow, 'pro' + 'gram')",
    "setattr(flow, 'run', None)",
    "return vars(flow)",
    "return globals()",
    "return locals()",
    "return dir(flow)",
    "return type(flow)",
    "return object()",
    "return breakpoint()",
    "return input()",
    "return memoryview(b'a')",
    "return super()",
    "return ().__class__.__bases__[0].__subclasses__()",
    "return flow.__class__",
    "return flow.program",
    "await flow.merge(['a'], into='main', gates=['true'])",
    "return flow._threads",
    "return flow.run.__func__.__globals__",
    "return corral.__builtins__",
    "return corral.run_sync('gemini-cli', 'hi')",
    "return corral._system",
    "return shlex.os.system('id')",
    "return re.enum.sys",
    "return json.codecs.open('/etc/passwd')",
    "m = shlex\nreturn m.os",
    "return [shlex][0].os",
    "return '{0.__class__}'.format(flow)",
    "return '{0.__class__}'.format_map({'0': flow})",
    "return f'{flow!a}'",
    "return f'{flow.__dict__}'",
    "__builtins__['eval']('1')",
    "return (lambda: 0).__code__",
    "return (lambda: 0).__globals__",
    "return (n for n in [1]).gi_frame.f_back",
    "return flow.now().cr_frame",
    "try:\n    await flow.now()\nexcept ValueError as error:\n    return error.__traceback__",
    "try:\n    await flow.now()\nexcept BaseException:\n    pass",
    "try:\n    await flow.now()\nexcept:\n    pass",
    "try:\n    await flow.now()\nexcept* ValueError:\n    pass",
    "class A:\n    pass",
    "with open('/etc/passwd') as f:\n    return f",
    "async with flow as f:\n    return f",
    "global x",
    "yield 1",
    "return [n async for n in flow]",
    "del flow",
    "match flow:\n    case object(program=p):\n        return p",
    "run = flow.run\nreturn await run('gemini-cli', 'hi', env={'A': 'b'})",
    "a = [flow]\nreturn await a[0].command('id', env={'LD_PRELOAD': 'x'})",
    "flow.run = print",
    "flow.program = 1",
    "corral.workflow = 1",
    "shlex.quote = str",
    "str = eval",
    "__name__ = 'a'",
    "return await flow.run('gemini-cli', 'hi', policy='all')",
    "return await flow.run('gemini-cli', 'hi', policy=x)",
    "return await flow.run('gemini-cli', 'hi', env={'A': 'b'})",
    "return await flow.run('gemini-cli', 'hi', cwd='/')",
    "return await flow.run('gemini-cli', 'hi', sandbox='off')",
    "return await flow.run('gemini-cli', 'hi', until='id')",
    "return await flow.run('gemini-cli', 'hi', allowed_tools=['*'])",
    "return await flow.run('gemini-cli', 'hi', **{'env': {}})",
    "return await flow.run(*['gemini-cli', 'hi'])",
    "return await flow.run('codex', 'hi')",
    "return await flow.run('sh -c id', 'hi')",
    "return await flow.run('gemini' + '-cli', 'hi')",
    "y = 'codex'\nreturn await flow.run(y, 'hi')",
    "x = await flow.ask('which?')\nreturn await flow.run(x, 'hi')",
    "return await flow.generate('openai:other', 'hi')",
    "return await flow.command('id', cwd='/')",
    "return await flow.command('id', env={'A': 'b'})",
    "return await flow.command('id', sandbox='off')",
    "return await flow.command('id', policy='all')",
    "return 9 ** 9 ** 9",
    "return b'a'",
    "def inner(a=eval):\n    return a",
    "def inner(a: eval('1')):\n    return a",
    "a: __import__('os') = 1",
    "@corral.workflow\nasync def inner(flow):\n    pass",
]
TOP = [
    "import os\n",
    "import corral.workflows as w\n",
    "import shlex as s\n",
    "from shlex import os\n",
    "from corral import run_sync\n",
    "from corral.workflows import *\n",
    "from . import x\n",
    "from builtins import eval\n",
    "X = open('/tmp/x', 'w')\n",
    "X = [n for n in (1).__class__.__mro__]\n",
    "X: str = str('a')\n",
    "print('hi')\n",
    "if True:\n    X = 1\n",
    "while True:\n    pass\n",
    "X = lambda: 0\n",
    "class A(str):\n    pass\n",
    "class A(metaclass=type):\n    pass\n",
    "@dataclass\nclass A:\n    def __init__(self) -> None:\n        pass\n",
    "@dataclass\nclass A:\n    x = open('/tmp/x')\n",
    "@dataclass\nclass A:\n    __slots__: str = 'a'\n",
    "@dataclass\nclass A:\n    x: 'open(1)'\n",
    "@dataclass\nclass A:\n    x: str = field(default_factory=open)\n",
    "@open\ndef helper() -> None:\n    pass\n",
    "@corral.workflow\nasync def other(flow: Flow) -> None:\n    pass\n",
    "def helper(a=open('/tmp/x')) -> None:\n    pass\n",
    "def helper() -> 'exec(1)':\n    pass\n",
    "type X = open\n",
    "def dataclass(a: object) -> object:\n    return a\n",
    "def field(default_factory: object) -> object:\n    return 1\n",
    "Literal = 1\n",
    "X = ['a']\nX[len('')] = 'b'\n",
]  # fmt: skip


@pytest.mark.parametrize("code", INSIDE)
def test_an_attempt_to_get_out_is_refused(code: str) -> None:
    problems = find_problems(in_body(code), BOUNDS.agents)
    assert problems, code
    assert all(each.line > len(HEAD.splitlines()) or each.line == 1 for each in problems)


@pytest.mark.parametrize("code", TOP)
def test_an_attempt_at_the_top_of_the_file_is_refused(code: str) -> None:
    assert find_problems(f"{HEAD}{code}{GOOD.removeprefix(HEAD)}", BOUNDS.agents), code


@pytest.mark.parametrize(
    "text",
    ["", "def (", "\0", "x = 1", f"{'(' * 500}1{')' * 500}", "x" * 100_000,
     in_body("return " + "[" * 70 + "]" * 70)],
    ids=["nothing", "syntax", "null", "no workflow", "parentheses", "long", "deep"],
)  # fmt: skip
def test_a_file_that_cannot_be_a_workflow_is_refused(text: str) -> None:
    assert find_problems(text)


def test_a_merge_is_refused_with_the_command_that_does_it() -> None:
    (problem,) = find_problems(in_body("await flow.merge(['a'])"), BOUNDS.agents)
    assert "`corral merge`" in problem.message


def test_a_drafted_file_is_checked_when_it_is_loaded() -> None:
    loaded = definition.load_text("x/fix.py", with_mark(GOOD, BOUNDS))
    assert loaded.name == "fix"
    bad = with_mark(in_body("return open('/etc/passwd')"), BOUNDS)
    with pytest.raises(ConfigError, match=r"bad.py:\d+: the name open") as caught:
        definition.load_text("x/bad.py", bad)
    assert "remove the line" in str(caught.value.hint)
    definition.load_text("x/own.py", bad.partition("\n")[2])


def test_the_mark_has_the_bounds_and_is_read_on_any_line() -> None:
    text = with_mark("# corral: drafted steps=999 runs=9 cost=9 agents=codex\nx = 1\n", BOUNDS)
    assert text.startswith(
        "# corral: drafted steps=9 runs=3 cost=1.5 agents=gemini-cli,openai:gpt-5\n"
    )
    assert text.count("# corral: drafted") == 1
    assert find_bounds(text) == find_bounds(f"# License\n{text}") == BOUNDS
    assert with_mark(text, BOUNDS) == text
    assert find_bounds("x = 1\n") is None


@pytest.mark.parametrize(
    "mark",
    ["", " steps=1", " steps=1 runs=1 cost=1 agents=", " steps=-1 runs=1 cost=1 agents=a",
     " steps=1 runs=1 cost=inf agents=a", " steps=1 runs=1 cost=1 agents=a, more"],
)  # fmt: skip
def test_a_mark_that_cannot_be_read_is_an_error(mark: str) -> None:
    with pytest.raises(ConfigError, match="not the mark"):
        find_bounds(f"# corral: drafted{mark}\n")


@pytest.mark.parametrize("agents", [(), ("sh -c id",), ("a,b",)])
def test_bounds_without_names_of_agents_are_refused(agents: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        Bounds(agents=agents).mark()


def test_the_outline_has_the_steps_in_their_order() -> None:
    outline = read_outline(GOOD)
    assert (outline.workflow, outline.about) == ("fix", "Fix an issue.")
    assert outline.parameters == ["issue: str", "agent: str", "rounds: int"]
    assert [(each.kind, each.what, each.policy, each.is_repeated) for each in outline.steps] == [
        ("run", "agent", "reads", False),
        ("run", "AGENT", "edits", False),
        ("command", "f'test -e {shlex.quote(done[0])}'", "", True),
        ("generate", "'openai:gpt-5'", "", True),
        ("ask", "'Good?'", "", False),
        ("sleep", "'1s'", "", False),
    ]
