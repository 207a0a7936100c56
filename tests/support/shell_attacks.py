"""Commands that try to do more than a rule with ``*`` names."""

RULES = ("allow pytest *", "allow printf *", "allow test *", "allow cp *")
EVASIONS = [
    "pytest # '\ntouch ran.txt #'",
    "pytest; touch ran.txt",
    "pytest $(touch ran.txt)",
    "pytest `touch ran.txt`",
    'pytest "$(touch ran.txt)"',
    "pytest > ran.txt",
    "pytest & touch ran.txt",
    "pytest\ntouch ran.txt",
    "pytest \\\n; touch ran.txt",
    "pytest <(touch ran.txt)",
    "PATH=.:$PATH pytest",
    "printf -v 'a[$(touch ran.txt)]' x",
    'printf -v "a[\\$""(touch ran.txt)]" x',
    "printf ran%n PATH",
    "test -v 'a[$(touch ran.txt)]'",
    "pytest {a,b}",
]
"""Each makes a file, or runs another program, where it is accepted by RULES."""
