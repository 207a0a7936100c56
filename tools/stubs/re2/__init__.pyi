class Options:
    max_mem: int
    never_capture: bool
    log_errors: bool

class error(Exception): ...  # noqa: N801 (its own name)

class _Regexp:
    @property
    def programsize(self) -> int: ...
    def search(self, text: bytes | str) -> object | None: ...

def compile(pattern: str, options: Options | None = None) -> _Regexp: ...
