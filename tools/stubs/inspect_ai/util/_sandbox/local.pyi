from tempfile import TemporaryDirectory

class LocalSandboxEnvironment:
    directory: TemporaryDirectory[str]
