"""Which shell commands a rule accepts, and which it finds. Pure text, linear time.

Two questions are answered differently on purpose:

- An **allow** rule accepts a command only if the complete line can be parsed (``parse``). A line
  that is not exactly in the grammar below is never accepted, whatever the pattern says.
- A **deny** rule looks for its command anywhere in a line that need not be understood
  (``matches``). It is a net, not a proof: over a shell that is otherwise free it can be evaded.

The grammar of a line that allow rules can accept (a character that is not named is refused)::

    line      = [blanks] command *( [blanks] operator [blanks] command ) [blanks]
    operator  = "&&" / "||" / "|" / ";"
    command   = program *( blanks word )
    blanks    = 1*( SPACE / TAB )
    program   = ( letter / digit / one of _ . / ) *( letter / digit / one of _ . / + : @ , - )
              / ":"                        ; never quoted; not a reserved word of the shell
    word      = 1*( plain / single / double )   ; does not start with "="
    plain     = letter / digit / one of _ @ % + : , . / = -
              / "~" directly after a letter or digit      ; HEAD~1: the shell expands no such ~
    single    = "'" *( printable but ' ) "'"
    double    = DQUOTE *( printable but DQUOTE $ ` \\ ! ) DQUOTE

Letters and digits are ASCII; ``printable`` is a space or what ``str.isprintable`` accepts.
So these are refused: newlines and control characters, comments, ``$`` and backticks outside
single quotes, backslashes outside single quotes, redirections, here-documents, ``&``,
parentheses, braces, unquoted ``* ? [ ] ~ ! ^``, assignments before a command, reserved words
(``if``, ``time``, ``!``, ``[[`` ...), an empty command between operators, a program by a relative
path (``./x``) behind a ``cd``, and lines of more than ``MAX_LENGTH`` characters.

bash, dash and zsh read such a line alike: each command becomes one program, or one builtin, with
the literal words. Builtins are the second trap: several evaluate their arguments, even quoted ones
(``printf -v 'a[$(id)]'``, ``test -v``, ``unset``, ``read``), or change what a later command means
(``hash -p``, ``alias``, ``export PATH=``). A pattern with ``*`` therefore accepts only builtins
that do neither; the others must be named by a pattern without ``*``, word for word. An argument
that zsh evaluates as arithmetic (``printf %d``, ``exit``, ``test x -eq y``) must be a number.

What is *not* promised: that a program does no harm with the arguments that ``*`` lets through.
A rule such as ``allow find *`` trusts ``find`` with ``-exec``.
"""

from __future__ import annotations

import re

import msgspec

from corral._core.quoting import json_pattern

MAX_LENGTH = 16 * 1024
"""Characters of a command. A longer one is never accepted by a rule."""

# Regular expressions are kept as text: re compiles them when first needed, mostly never.
_PIECE = r"""(?x)
    (?P<blanks> [ \t]+ )
  | (?P<plain> (?: [A-Za-z0-9_@%+:,./=-] | (?<=[A-Za-z0-9])~ )+ )
  | '(?P<single> [^'\t]* )'
  | "(?P<double> [^"$`\\!\t]* )"
  | (?P<operator> && | \|\|? | ; )
    """
_PROGRAM = r"[A-Za-z0-9_./][A-Za-z0-9_./+:@,-]*|:"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


RESERVED_WORDS = _names(
    "! { } [[ ]] case coproc do done elif else end esac fi for foreach function if in "
    "nocorrect noglob repeat select then time until while"
)
"""First words that change how bash, dash or zsh read the rest."""

_PLAIN_BUILTINS = _names(
    ": break cd continue echo exit false kill printf pwd test times true type umask"
)
"""Builtins that evaluate none of their arguments and change no later command, given arguments that
``_is_plain`` accepts."""
_MOVING = _names("cd chdir popd pushd")
_NUMBER = r"[-+]?[0-9]+(?:\.[0-9]+)?"
_COMPARISONS = _names("-eq -ne -lt -le -gt -ge -t")
"""Of ``test``: zsh takes both sides for arithmetic, in which ``a[$(id)]`` runs a command."""
_TEXT_FORMAT = r"(?:[^%]|%%|%[-+ #0-9]*(?:\.[0-9]*)?[bcqs])*"
"""Of ``printf``: no conversion of a number."""

BUILTINS = _PLAIN_BUILTINS | _names(
    ". [ alias autoload bg bind bindkey builtin bye caller chdir command compgen complete compopt "
    "declare dirs disable disown emulate enable eval exec export fc fg float functions getln "
    "getopts hash help hist history integer jobs let limit local logout mapfile nameref popd "
    "print private pushd pushln r read readarray readonly rehash return sched set setopt shift "
    "shopt source suspend trap ttyctl typeset ulimit unalias unfunction unhash unlimit unset "
    "unsetopt vared wait whence zcompile zle zmodload zstyle"
)
"""Every builtin of bash and dash, and those of zsh and ksh that evaluate something."""


class SimpleCommand(msgspec.Struct, frozen=True, gc=False):
    """One program or builtin with its literal arguments."""

    text: str
    """As written, with one space between words."""
    words: tuple[str, ...]
    """Without quotes: what the program is given."""


def parse(command: str) -> tuple[SimpleCommand, ...] | None:
    """The simple commands of a line, or None if it is not exactly in the grammar above."""
    if len(command) > MAX_LENGTH or not command.replace("\t", " ").isprintable():
        return None
    token = re.compile(_PIECE)
    commands: list[SimpleCommand] = []
    raw: list[str] = []
    words: list[str] = []
    in_word = False
    at = 0
    while at < len(command):
        found = token.match(command, at)
        if found is None:
            return None
        kind = found.lastgroup or ""
        at = found.end()
        if kind == "operator":
            if not _is_command(raw, words):
                return None
            commands.append(SimpleCommand(" ".join(raw), tuple(words)))
            raw, words, in_word = [], [], False
        elif kind == "blanks":
            in_word = False
        elif in_word:
            raw[-1] += found[0]
            words[-1] += found[kind]
        else:
            if found[0].startswith("="):
                return None
            raw.append(found[0])
            words.append(found[kind])
            in_word = True
    if not _is_command(raw, words):
        return None
    commands.append(SimpleCommand(" ".join(raw), tuple(words)))
    moved = False
    for simple in commands:
        name = simple.words[0]
        if moved and "/" in name and not name.startswith("/"):
            return None  # it may mean another program than in the folder where the line starts
        moved = moved or name in _MOVING
    return tuple(commands)


def _is_command(raw: list[str], words: list[str]) -> bool:
    # A quoted first word never equals its text without quotes.
    return (
        bool(raw)
        and raw[0] == words[0]
        and raw[0] not in RESERVED_WORDS
        and re.fullmatch(_PROGRAM, raw[0]) is not None
    )


def accepts(pattern: str, command: SimpleCommand) -> bool:
    """Whether an allow pattern accepts this one command. Without ``*`` the pattern is the
    command, word for word; with ``*`` it accepts no builtin that evaluates its arguments."""
    if "*" not in pattern:
        return command.text == pattern
    return _is_plain(command.words) and fits(pattern, command.text)


def covers(pattern: str, command: str) -> bool:
    """Whether the pattern accepts every simple command of the line. A pattern without ``*``
    also accepts exactly its own text, in whatever grammar that is."""
    if is_literal(pattern, command):
        return True
    parts = parse(command)
    return parts is not None and all(accepts(pattern, part) for part in parts)


def is_literal(pattern: str, command: str) -> bool:
    """Whether the command is the pattern's own text, character by character."""
    return "*" not in pattern and len(command) <= MAX_LENGTH and command.strip(" \t") == pattern


def _is_plain(words: tuple[str, ...]) -> bool:
    """Whether the words run no other program and change no later command."""
    name, arguments = words[0], words[1:]
    if name not in BUILTINS:
        return True
    if name not in _PLAIN_BUILTINS:
        return False
    match name:
        case "test":
            # ``-v`` and ``-R`` evaluate the subscript of a variable's name.
            if any(char in word for word in arguments for char in "[$`"):
                return False
            is_numeric = not _COMPARISONS.isdisjoint(arguments)
            return not is_numeric or _are_all(rf"-[a-z]+|!|{_NUMBER}", arguments)
        case "printf":
            return _is_plain_printf(arguments)
        case "exit" | "break" | "continue":
            return _are_all(_NUMBER, arguments)
        case _:
            return True


def _is_plain_printf(arguments: tuple[str, ...]) -> bool:
    """``-v`` and ``%n`` assign to a variable, whose name may have a subscript."""
    if any(word.startswith("-") for word in arguments[:1]):
        return False
    if any(re.search(r"%[^A-Za-z%]*[hjlLqtz]*n", word) for word in arguments):
        return False
    is_text = re.fullmatch(_TEXT_FORMAT, (arguments or ("",))[0]) is not None
    return is_text or _are_all(_NUMBER, arguments[1:])


def _are_all(regex: str, words: tuple[str, ...]) -> bool:
    return all(re.fullmatch(regex, word) for word in words)


def fits(pattern: str, text: str) -> bool:
    """Whether the text fits the pattern: ``*`` is anything, and a pattern that ends in `` *``
    also fits the text without arguments. Linear: every piece is taken where it first occurs."""
    if pattern.endswith(" *") and len(pattern) > 2 and _fits(pattern[:-2], text):
        return True
    return _fits(pattern, text)


def _fits(pattern: str, text: str) -> bool:
    first, *rest = pattern.split("*")
    if not rest:
        return text == first
    last = rest.pop()
    end = len(text) - len(last)
    if end < len(first) or not text.startswith(first) or not text.endswith(last):
        return False
    at = len(first)
    for piece in rest:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


# Deny rules.

_PREFIX_WORDS = _names(
    "if then elif else while until do time ! { } [[ command builtin exec eval nohup setsid env "
    "sudo doas nice ionice stdbuf timeout xargs busybox chroot unshare strace"
)
"""Words before a command's own name: the shell's, and programs that run their arguments."""
_SHELLS = _names("sh bash dash ash zsh ksh mksh fish")
_EXEC_OPTIONS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_ASSIGNMENT = r"[A-Za-z_]\w*(?:\[[^\]=]*\])?\+?="
_REDIRECTION = r"\d*[<>]+[&|]?"
_MAX_STAGES = 12
_DEPTH = 3


def matches(pattern: str, command: str) -> bool:
    """Whether any command in the line fits the pattern: behind operators, in substitutions, behind
    assignments, redirections and words such as ``sudo``, quoted or by its full path."""
    return any(fits(pattern, found) for found in _candidates(command, _DEPTH))


def _candidates(command: str, depth: int) -> list[str]:
    found: list[str] = [_normalize_blanks(command), command.strip(" \t")]
    for part in split_commands(command.replace("\\\n", "")):
        raw = part.split(" ")
        found += [part, " ".join(raw[_skip_prefix(raw, 0) :])]
        words = _words(part)
        at = 0
        for _ in range(_MAX_STAGES):
            found.append(" ".join(words[at:]))
            if at < len(words) and "/" in words[at]:
                name = words[at].rstrip("/").rpartition("/")[2]
                found.append(" ".join([name, *words[at + 1 :]]))
            after = _skip_prefix(words, at)
            if after == at:
                break
            at = after
        else:
            # More prefixes than any honest line has: look behind all of them at once.
            while (after := _skip_prefix(words, at)) != at:
                at = after
            found.append(" ".join(words[at:]))
        if depth and (inner := _shell_argument(words[at:])):
            found += _candidates(inner, depth - 1)
        after_exec = [n for n, word in enumerate(words) if word in _EXEC_OPTIONS][:_MAX_STAGES]
        found += [" ".join(words[n + 1 :]) for n in after_exec]
    return found


def _shell_argument(words: list[str]) -> str:
    """The text that a shell is given to run: ``sh -c TEXT``."""
    if not words or words[0].rpartition("/")[2] not in _SHELLS:
        return ""
    for at, word in enumerate(words[1:-1], 1):
        if word.startswith("-") and not word.startswith("--") and "c" in word:
            return words[at + 1]
    return ""


def _skip_prefix(words: list[str], at: int) -> int:
    """Where the words go on behind one prefix, with the options and numbers of a program that
    runs its arguments."""
    if at >= len(words):
        return at
    word = words[at]
    if re.match(_ASSIGNMENT, word):
        return at + 1
    if found := re.match(_REDIRECTION, word):
        return at + (1 if found.end() < len(word) else 2)
    if word.rpartition("/")[2] not in _PREFIX_WORDS:
        return at
    at += 1
    while at < len(words) and (words[at].startswith("-") or words[at][:1].isdigit()):
        at += 1
    return at


def _words(part: str) -> list[str]:
    """The words of a part without quotes and backslashes: a guess for unknown grammar."""
    words: list[str] = []
    current: list[str] = []
    quote = ""
    escaped = started = False
    for char in part:
        if escaped:
            current.append(char)
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = started = True
        elif quote:
            if char == quote:
                quote = ""
            else:
                current.append(char)
        elif char in "'\"":
            quote = char
            started = True
        elif char in " \t":
            if started or current:
                words.append("".join(current))
            current, started = [], False
        else:
            current.append(char)
    if started or current:
        words.append("".join(current))
    return words


def split_commands(command: str) -> list[str]:
    """The simple commands of any line, with single spaces: cut outside quotes at ``; & | && ||``,
    newlines and parentheses, and at substitutions even inside double quotes. A guess where the
    line is not in the grammar above: for deny rules only."""
    parts: list[list[str]] = [[]]
    around: list[str] = []
    """For each open substitution: the quote around it, and its opening character."""
    quote, escaped = "", False
    for char in command:
        current = parts[-1]
        # Whether the character starts or ends a substitution or a subshell here.
        substitutes = char == "`" or (char == "(" and (not quote or current[-1:] == ["$"]))
        if escaped or (char == "\\" and quote != "'"):
            current.append(char)
            escaped = not escaped
        elif substitutes and quote != "'":
            if char == "`" and around and around[-1].endswith("`") and not quote:
                quote = around.pop()[:-1]
            else:
                around.append(quote + char)
                quote = ""
            parts.append([])
        elif quote:
            current.append(char)
            quote = "" if char == quote else quote
        elif char == ")":
            quote = around.pop()[:-1] if around and around[-1].endswith("(") else ""
            parts.append([])
        elif char in ";&|\n":
            parts.append([])
        else:
            current.append(char)
            quote = char if char in "'\"" else ""
    return [tidy for part in parts if (tidy := _normalize_blanks("".join(part)))]


def _normalize_blanks(part: str) -> str:
    return " ".join(part.strip().strip("{}! \t").split())


PLAIN = r"[A-Za-z0-9_@%+:,.\/= -]{0,2000}"
"""Unquoted words and the blanks between them."""
SINGLE_QUOTED = r"'[ !#-&\x28-\[\]-~]{0,2000}'"
"""Printable ASCII, but for both quotes and the backslash, which JSON would escape."""
DOUBLE_QUOTED = r'\\"[ #%-\[\]^_a-~]{0,2000}\\"'
"""Printable ASCII, but for the double quote, ``$``, the backtick, the backslash and ``!``."""
SINGLE_BLANKS = r'(?![^\x00]*(  | =| "))'
"""A look-ahead for the start: no two blanks, no blank at the end, no word that starts with ``=``
(zsh replaces it by a path). Stricter than needed inside quotes."""

_QUOTED = (SINGLE_QUOTED, DOUBLE_QUOTED)
_TAILS = (
    *("",),
    *(one + PLAIN for one in _QUOTED),
    *(one + PLAIN + two + PLAIN for one in _QUOTED for two in _QUOTED),
)
_WORDS = PLAIN + "(" + "|".join(_TAILS) + ")"
"""What the last ``*`` of a pattern may be."""
MAX_STARS = 2
"""Each ``*`` multiplies the time that a backtracking matcher may need."""
_EXACT_PROGRAM = r"[A-Za-z0-9_./][A-Za-z0-9_./+:@,-]*"
_LITERAL = r"[A-Za-z0-9_@%+:,./= -]*"
_SAFE_BUILTINS = frozenset({"cd", "echo", "false", "kill", "pwd", "true", "type", "umask"})


def allow_regex(pattern: str) -> str | None:
    """An allow pattern as a regular expression, for agents whose own rules are such expressions.

    The expression is JavaScript's and Python's alike, has no repetition inside a repetition, and is
    meant for the JSON text of a command (the characters between the quotes of a JSON string). It
    accepts a subset of what ``covers`` accepts for the same pattern: one simple command whose
    program the pattern names, with ASCII words and at most two quoted pieces. The caller anchors
    it at both ends, with the closing quote of the JSON string behind it.

    None where a regular expression cannot be exact:
    a program's name with ``*`` in it, a builtin that evaluates its arguments, quotes beside a
    ``*``, or more than ``MAX_STARS`` of them."""
    if "*" not in pattern:
        return json_pattern(pattern)
    program, _, rest = pattern.partition(" ")
    if (
        re.fullmatch(_EXACT_PROGRAM, program) is None
        or program in RESERVED_WORDS
        or (program in BUILTINS and program not in _SAFE_BUILTINS)
        or re.fullmatch(_LITERAL, rest.replace("*", "")) is None
        or pattern.count("*") > MAX_STARS
    ):
        return None
    if rest == "*":
        return f"{SINGLE_BLANKS}{json_pattern(program)}(| {_WORDS})"
    is_open = pattern.endswith(" *")
    *before, last = (pattern[:-2] if is_open else pattern).split("*")
    text = PLAIN.join(map(json_pattern, before))
    if is_open:
        text += f"{PLAIN if before else ''}{json_pattern(last)}(| {_WORDS})"
    else:
        text += _WORDS + json_pattern(last)
    return SINGLE_BLANKS + text
