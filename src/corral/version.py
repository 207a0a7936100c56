"""The version of corral. In a checkout ``corral --version`` asks git (``tools/build_version.py``);
in a wheel, this module has the version of the build (``tools/build_hook.py``)."""

__version__ = "0.1.0.dev0"
