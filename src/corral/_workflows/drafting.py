"""Drafts: an agent or a model writes a workflow or a pipeline, which is checked before it is kept.

The drafter may read the project, and nothing else: its answer is the file, in one block of code.
What a check finds goes back to it, a few times. Nothing of a draft is run here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from corral._pipelines import dot_parser
from corral._pipelines.dot_parser import DotError
from corral._pipelines.graph import Graph, Node
from corral._pipelines.linter.engine import lint
from corral._sessions import api
from corral._workflows import syntax_rules
from corral._workflows.definition import load_text
from corral._workflows.drafted import Bounds, with_mark
from corral.errors import ConfigError, CorralError, EmptyAnswer, SchemaNotMet
from corral.result import Result
from corral.run_kwargs import RunKwargs

Kind = Literal["workflow", "pipeline"]
ROUNDS = 3
MOST_PROBLEMS = 20
"""Problems that are reported to the drafter at once."""

_LANGUAGE = {"workflow": "python", "pipeline": "dot"}

_GRAPH_ATTRS = syntax_rules.words_of(
    "goal label rankdir max_visits max_cost max_total_tokens max_calls default_max_retries"
    " error_policy"
)
_NODE_ATTRS = syntax_rules.words_of(
    "shape type label class prompt agent model policy timeout max_retries goal_gate tool_command"
    " fail_on_error sandbox max_parallel join_policy thread_id fidelity max_visits worktree"
    " on_conflict error_policy retry_target system_prompt"
)
_EDGE_ATTRS = syntax_rules.words_of("label condition weight fidelity")
_KINDS = syntax_rules.words_of(
    "start exit codergen prompt tool wait.human conditional parallel parallel.fan_in"
)


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A file that passed its checks."""

    kind: Kind
    name: str
    """Of the workflow or the pipeline."""
    text: str
    """The complete file."""
    bounds: Bounds
    outline: list[str]
    """What it does, a line for each step."""
    answers: int
    """How many answers it took."""
    cost_usd: float | None = None
    tokens: int | None = None


def draft(
    kind: Kind,
    goal: str,
    bounds: Bounds,
    *,
    agent: str | None = None,
    rounds: int = ROUNDS,
    options: RunKwargs | None = None,
) -> Draft:
    """Let ``agent`` write a workflow or a pipeline for this goal. Blocks. Raises the error of its
    run, and ``SchemaNotMet`` if its last answer does not pass the checks."""
    if not goal.strip():
        raise ConfigError("a draft needs a goal", hint="Say what the file shall do.")
    bounds.mark()  # raises for bounds that cannot be written
    find, answers, problems = _CHECKS[kind], [""], list[str]()

    def check(result: Result) -> str | None:
        """The problems of the last answer."""
        answers.append(code_block(result.text, _LANGUAGE[kind]))
        problems[:] = find(answers[-1], bounds)
        if not problems:
            return None
        shown = "\n".join(f"- {each}" for each in problems[:MOST_PROBLEMS])
        return f"the file has problems:\n{shown}\n\nAnswer with the complete corrected file"

    given: RunKwargs = {**(options or {}), "policy": "reads"}
    prompt = prompt_for(kind, goal, bounds)
    result = api.run_sync(agent, prompt, until=check, rounds=rounds, **given)
    if not problems and len(answers) > 1:
        text = with_mark(answers[-1], bounds) if kind == "workflow" else f"{answers[-1].strip()}\n"
        name, outline = _OUTLINES[kind](text)
        return Draft(
            kind=kind,
            name=name,
            text=text,
            bounds=bounds,
            outline=outline,
            answers=len(answers) - 1,
            cost_usd=result.cost.usd,
            tokens=result.usage.total,
        )
    if problems:
        raise SchemaNotMet(
            f"no draft of {rounds + 1} answers passed the checks; the last one: {problems[0]}",
            hint="Raise --rounds, choose another model, or write a simpler goal.",
        )
    result.raise_for_status()
    raise EmptyAnswer("the agent gave no answer")


def code_block(text: str, language: str) -> str:
    """The last block of code in this language, else the last one, else the text itself."""
    blocks = [*_code_blocks(text)]
    named = [code for name, code in blocks if name in (language, language[:2], "gv", "graphviz")]
    return (named or [code for _, code in blocks] or [text])[-1]


def _code_blocks(text: str) -> Iterator[tuple[str, str]]:
    """The language and the text of each block between two lines that begin with three backticks."""
    language: str | None = None
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        if language is None:
            if line.startswith("```"):
                language = line[3:].split(maxsplit=1)[0].lower() if line[3:].strip() else ""
        elif line.rstrip() == "```":
            yield language, "".join(lines)
            language, lines = None, []
        else:
            lines.append(line)


# Checks.


def workflow_problems(text: str, bounds: Bounds) -> list[str]:
    """What is wrong with the text of a workflow; it is not run."""
    found = [str(each) for each in syntax_rules.find_problems(text, bounds.agents)]
    if found:
        return found
    outline = syntax_rules.read_outline(text)
    runs = sum(each.kind in ("run", "generate") for each in outline.steps)
    if not outline.steps:
        found.append("it has no step")
    if len(outline.steps) > bounds.steps:
        found.append(f"it has {len(outline.steps)} steps, and {bounds.steps} are allowed")
    if runs > bounds.runs:
        found.append(f"it runs agents in {runs} places, and {bounds.runs} runs are allowed")
    if not found:
        try:
            load_text("draft.py", with_mark(text, bounds)).check_types()
        except CorralError as error:
            found.append(error.message)
    return found


def pipeline_problems(text: str, bounds: Bounds) -> list[str]:
    """What is wrong with the text of a pipeline: what lint calls an error, and what a draft must
    not contain."""
    try:
        graph = dot_parser.parse(text)
    except DotError as error:
        return [f"line {error.line}: {error.problem}"]
    found = [*_graph_problems(graph, bounds)]
    found += [
        f"line {each.line}: {each.message}" + (f" ({each.fix})" if each.fix else "")
        for each in lint(graph)
        if each.severity == "error"
    ]
    return found


def _graph_problems(graph: Graph, bounds: Bounds) -> Iterator[str]:
    if more := graph.attrs.keys() - _GRAPH_ATTRS:
        yield f"attributes of the graph that a draft cannot have: {', '.join(sorted(more))}"
    if len(graph.nodes) > bounds.steps:
        yield f"it has {len(graph.nodes)} nodes, and {bounds.steps} are allowed"
    for key, most in (("max_cost", bounds.cost), ("max_visits", bounds.runs)):
        if not _is_at_most(graph.attrs.get(key), most):
            yield f"the graph needs {key} = {most:g}, or less"
    runs = sum(1 for _ in graph.of_kind("codergen", "prompt"))
    if runs > bounds.runs:
        yield f"{runs} nodes run agents, and {bounds.runs} are allowed"
    for node in graph.nodes.values():
        yield from (f"line {node.line}: {node.id}: {text}" for text in _node_problems(node, bounds))
    for edge in graph.edges:
        if more := edge.attrs.keys() - _EDGE_ATTRS:
            yield f"attributes of an edge that a draft cannot have: {', '.join(sorted(more))}"


def _is_at_most(value: object, most: float) -> bool:
    try:
        return 0 < float(str(value)) <= most
    except ValueError:
        return False


def _node_problems(node: Node, bounds: Bounds) -> Iterator[str]:
    if more := node.attrs.keys() - _NODE_ATTRS:
        yield f"attributes that a draft cannot have: {', '.join(sorted(more))}"
    if node.kind not in _KINDS:
        yield f"the type {node.kind!r} is not allowed; allowed: {', '.join(sorted(_KINDS))}"
    if node.kind == "tool" and node.text("sandbox") != "require":
        yield "a command needs sandbox=require"
    if node.text("policy", "reads") not in syntax_rules.POLICIES:
        yield "policy is reads or edits"
    if node.text("prompt").startswith("@"):
        yield "a prompt is a text, not a file"
    if node.kind in ("codergen", "prompt"):
        named = [node.text(key) for key in ("agent", "model") if key in node.attrs]
        if not named or not all(each in bounds.agents for each in named):
            key = "agent" if node.kind == "codergen" else "model"
            yield f"it needs {key}, one of {', '.join(bounds.agents)}"


# What is shown of a draft.


def _workflow_outline(text: str) -> tuple[str, list[str]]:
    found = syntax_rules.read_outline(text)
    head = f"{found.workflow}({', '.join(found.parameters)})"
    lines = [f"{head}: {found.about}" if found.about else head]
    for step in found.steps:
        words = [f"line {step.line}: {step.kind} {' '.join(step.what.split())[:100]}"]
        words += [step.policy] if step.policy else []
        words += ["many times"] if step.is_repeated else []
        lines.append(", ".join(words))
    return found.workflow, lines


def _pipeline_outline(text: str) -> tuple[str, list[str]]:
    graph = dot_parser.parse(text)
    lines = [f"{graph.name}: {graph.goal}" if graph.goal else graph.name]
    for node in graph.nodes.values():
        what = node.text("tool_command") or node.text("agent") or node.text("model")
        words = [
            f"line {node.line}: {node.id} ({node.kind}) {' '.join(what.split())[:100]}".strip()
        ]
        words += [node.text("policy")] if node.text("policy") else []
        lines.append(", ".join(words))
    return graph.name, lines


_CHECKS: dict[Kind, Callable[[str, Bounds], list[str]]] = {
    "workflow": workflow_problems,
    "pipeline": pipeline_problems,
}
_OUTLINES: dict[Kind, Callable[[str], tuple[str, list[str]]]] = {
    "workflow": _workflow_outline,
    "pipeline": _pipeline_outline,
}


# The prompt.


def prompt_for(kind: Kind, goal: str, bounds: Bounds) -> str:
    rules = _workflow_rules() if kind == "workflow" else _pipeline_rules(bounds)
    first = bounds.agents[0]
    rules = rules.replace("AGENT-NAME", first)
    if kind == "pipeline" and ":" in first:  # a model
        rules = rules.replace(f'agent="{first}"', f'model="{first}"')
    return (
        f"Write a {kind} of corral: a file that people review and run later. Do not do the work"
        f" itself, and change no files.\n\nThe goal:\n{goal.strip()}\n\n{rules}\n"
        f"The agents and models that it may use: {', '.join(bounds.agents)}. At most"
        f" {bounds.steps} steps, of which {bounds.runs} run an agent or a model. A loop needs an"
        " end.\n\nLook at this project if you can, so that commands and paths are right. Answer"
        f" with one block of code, ```{_LANGUAGE[kind]}, with the complete file.\n"
    )


def _workflow_rules() -> str:
    steps = "\n".join(
        f"- flow.{name}: keywords {words or 'none'}" for name, words in syntax_rules.STEPS.items()
    )
    modules = "; ".join(
        f"{name}: {', '.join(sorted(names))}" for name, names in syntax_rules.MODULES.items()
    )
    names = "; ".join(
        f"{name}: {', '.join(sorted(names))}" for name, names in syntax_rules.NAMES.items()
    )
    return (
        f"It is Python. An example:\n\n```python\n{_EXAMPLE}```\n\n"
        "flow.run(agent, prompt) gives .text, .files, .branch, or with output= a dataclass."
        " flow.generate(model, prompt) gives a text. flow.command(command) gives .ok, .exit_code,"
        " .stdout, .stderr, and runs in a sandbox without a network. flow.ask(question, choices)"
        " gives a text with .comment. flow.parallel([...]) gives their results. A step that fails"
        f" raises StepError. Every step is awaited.\n\nThe steps:\n{steps}\n\n"
        f"import only these, and use only: {modules}. from … import only: {names}. Builtins only:"
        f" {' '.join(sorted(syntax_rules.BUILTINS))}.\n"
        "At the top of the file only imports, constants, dataclasses and functions; exactly one"
        " function has @corral.workflow, with the first parameter flow. No other classes, no with,"
        " no yield, no **, no names or attributes with a leading underscore. The policy of an agent"
        " is 'reads' or 'edits'. Use shlex.quote for what you put into a command.\n"
    )


def _pipeline_rules(bounds: Bounds) -> str:
    return (
        f"It is a Graphviz digraph. An example:\n\n```dot\n{_DOT_EXAMPLE}```\n\n"
        f"The graph needs max_cost (at most {bounds.cost:g}) and max_visits (at most"
        f" {bounds.runs}). The types of nodes: {', '.join(sorted(_KINDS))}; the shapes are those of"
        " the example, and component for parallel, tripleoctagon for parallel.fan_in, diamond for"
        " conditional. A node that gives a prompt to an agent needs agent; with type=prompt it is"
        " one call of model. A command (tool_command) needs sandbox=require. policy is reads or"
        f" edits. Attributes of nodes only: {' '.join(sorted(_NODE_ATTRS))}; of edges:"
        f" {' '.join(sorted(_EDGE_ATTRS))}. A condition is outcome=success or outcome=fail. In a"
        " prompt, $goal is the goal and {{last_response}} the last answer.\n"
    )


_EXAMPLE = '''\
import corral
from dataclasses import dataclass
from corral.errors import StepError
from corral.workflows import Flow

AGENT = "AGENT-NAME"


@dataclass
class Plan:
    parts: list[str]


@corral.workflow
async def improve(flow: Flow, folder: str = "docs") -> str:
    """Improve a folder, part by part."""
    plan = await flow.run(AGENT, f"Plan for {folder}", policy="reads", output=Plan, name="plan")
    done = []
    for part in plan.parts[:5]:
        try:
            work = await flow.run(AGENT, f"Improve {part}", policy="edits", name="improve")
        except StepError as error:
            done.append(error.message)
            continue
        done.append(work.text)
    check = await flow.command("make test", name="check")
    if not check.ok and await flow.ask("The tests fail. Keep it?", ["yes", "no"]) == "no":
        return check.stdout[-2000:]
    return "\\n".join(done)
'''
_DOT_EXAMPLE = """\
digraph improve {
    goal = "Improve the docs"
    max_cost = 2
    max_visits = 5

    start  [shape=Mdiamond]
    work   [agent="AGENT-NAME", policy=edits, prompt="$goal"]
    check  [shape=parallelogram, tool_command="make test", sandbox=require]
    accept [shape=hexagon, label="Is the result good?"]
    done   [shape=Msquare]

    start -> work -> check
    check -> accept [condition="outcome=success"]
    check -> work   [condition="outcome=fail"]
    accept -> done  [label="[A] Accept"]
    accept -> work  [label="[R] Revise"]
}
"""
