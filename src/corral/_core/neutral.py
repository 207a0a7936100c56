"""Makes text of a reviewer, or of a stranger, safe for the format that it is put into.

A reviewer has read a stranger's text and may repeat it. What it writes ends in CI logs, comments,
reports and XML, whose readers obey more than people see: a line ``::add-mask::`` is a command of
GitHub, ``/merge`` one of GitLab, ``@name`` sends mail, an image is fetched from where its URL says.
So nothing of it is ever a part of a format's language:

* ``log_text``: for a CI log. No line begins like a command of a CI system.
* ``workflow_data``, ``workflow_property``: inside a workflow command of GitHub.
* ``markdown_text``, ``markdown_code``: in a comment or a summary. The text is shown as it is: no
  markup, no HTML, no link, no mention, no reference to an issue, no command at the begin of a line.
* ``xml_text``: in XML, as text or in an attribute.

Control and invisible characters become visible escapes in all of them.
"""

from __future__ import annotations

import re

from corral._core.terminal_text import visible

_NEVER = "&#8203;"
"""An empty character. After it, what follows a sign is no name, number or address to GitHub and
GitLab, which look for these in the finished text, where a backslash has no effect any more."""
_MARK = "\3"
"""Stands for ``_NEVER`` while a line is written: no control character is in it."""
_SIGN = re.compile(r"^\d+[.)](?=\s|$)|^[-+=;/>]|[\\`*_\[\]{~|$<&@#!%:]")
"""What Markdown, GitHub or GitLab may interpret: the first two at the begin of a line only."""
_ADDRESS = re.compile(r"www(?=\.)|(?<![^\W_])gh(?=-)", re.IGNORECASE)
_HASH = re.compile(r"[0-9a-f]{6}(?=[0-9a-f])", re.IGNORECASE)
"""Seven digits are a commit to GitHub and GitLab."""
_TICKS = re.compile(r"`+")
_LOG_COMMAND = re.compile(r"##(?=\w*\[)")


def log_text(text: str) -> str:
    """Text of which a CI system obeys no line: ``::`` and ``##[`` mean nothing in it."""
    lines = _LOG_COMMAND.sub("# #", visible(text)).split("\n")
    return "\n".join(_without_command(line) for line in lines)


def _without_command(line: str) -> str:
    bare = line.lstrip()
    return f"{line[: len(line) - len(bare)]}: {bare[1:]}" if bare.startswith("::") else line


def workflow_data(text: str) -> str:
    """The message of a workflow command."""
    text = _LOG_COMMAND.sub("# #", visible(text))
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def workflow_property(text: str) -> str:
    """The value of a property of a workflow command."""
    return workflow_data(text).replace(":", "%3A").replace(",", "%2C")


def markdown_text(text: str) -> str:
    """A text for Markdown, in one or more lines."""
    lines = (" ".join(line.split()) for line in visible(text).split("\n"))
    return "\n".join(map(_markdown_line, lines)).strip("\n")


def _markdown_line(line: str) -> str:
    line = _HASH.sub(rf"\g<0>{_MARK}", _ADDRESS.sub(rf"\g<0>{_MARK}", line))
    return _SIGN.sub(_as_text, line).replace(_MARK, _NEVER)


def _as_text(sign: re.Match[str]) -> str:
    """A sign, written so that it is shown and means nothing. What has no meaning where it stands
    stays as it is: people also read comments as plain text."""
    text, line, start, end = sign[0], sign.string, sign.start(), sign.end()
    before, after = line[max(0, start - 1) : start], line[end : end + 1]
    # Names and numbers: @octocat, #1, !4, ~bug, %1.0, $6, &5; addresses and emoji: https://x, :+1:
    names = after.isalnum() or (after != "" and after in '_"{')
    names = (names and text in "@#!~%$&:") or (text == ":" and after != "" and after in "/+-")
    # GitLab: {+ added +}, [- removed -], [[_TOC_]]
    pairs = text in "[{" and after != "" and after in "[{+-"
    match text:
        case "<":
            text = "&lt;"
        case "&":
            text = "&amp;" if names or after == "#" else "&"
        case "_" if before.isalnum() and after.isalnum():
            pass  # within a word
        case "\\" if after and (after.isalnum() or after.isspace() or not after.isascii()):
            pass  # it escapes nothing
        case "@" | "!" | "%" | "{":
            pass
        case "#" | ":" if start > 0:
            pass
        case _:
            text = f"{text[:-1]}\\{text[-1]}"
    return f"{text}{_MARK}" if names or pairs else text


def markdown_code(text: str, indent: str = "") -> str:
    """A block of code for Markdown. Each line is indented by one blank more, because GitLab looks
    for commands at the begin of each line before it looks for code."""
    text = visible(text)
    longest = max((len(ticks) for ticks in _TICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    body = "\n".join(f"{indent} {line}" for line in text.split("\n"))
    return f"{indent}{fence}text\n{body}\n{indent}{fence}"


def markdown_name(text: str) -> str:
    """A file name or a place, as code within a line."""
    text = " ".join(visible(text).split())
    if not text or text.startswith("`") or text.endswith("`") or "`" in text:
        return markdown_text(text)
    return f"`{text}`"


def xml_text(text: str) -> str:
    """Text for XML, also in an attribute with double quotes."""
    text = visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace('"', "&quot;").replace("'", "&#39;").replace("\n", "&#10;")


def markdown_document(text: str) -> str:
    """A longer text for Markdown: blocks between lines of three backticks are code, and nothing
    else is markup."""
    parts: list[str] = []
    for number, part in enumerate(re.split(r"(?m)^```.*$", text)):
        if part.strip():
            is_code = number % 2 == 1
            parts.append(markdown_code(part.strip("\n")) if is_code else markdown_text(part))
    return "\n\n".join(parts)
