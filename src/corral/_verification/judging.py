"""Which files judge the work: tests, and what decides how checks run.

An agent that may change them decides itself whether it has done its task. So with
``verify_from="before"`` the checks see them as they were before the run, and none that the run has
added. There are two rules, and no command is parsed.

With the option ``work`` (``scope="work"``), the work is what its patterns name, but for files of
``judge_files``. Everything else judges.

Without it (``scope="names"``), everything is the work except

* what a pattern names: ``PATTERNS`` below, and those of ``judge_files``. The patterns are those of
  ``.gitignore``; the last one that matches decides, and ``!pattern`` takes a file out;
* a file or folder that existed before the run and that a word of a command names, at any depth, and
  everything below such a folder: ``tools/check.py`` in ``cd tools; sh < check.py``;
* what the run has added under the name of a target of the Makefile: ``make test`` does nothing if
  there is a file ``test``. Where a name is computed, any name without a dot may be one;
* what the run has added in the place of a file that judges, or of a module that a test runner
  imports: ``check/`` beside ``check.py``, ``json.py`` beside the tests;
* what a link that judges leads to.

What is not known: a file that only the tests themselves read, by a name that no pattern has, and a
module that is only imported. Such files are named with ``judge_files``, or the work with ``work``.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from functools import lru_cache
from itertools import islice
from pathlib import PurePosixPath

import msgspec

from corral._system.git import scan
from corral._system.git.scan import Rules
from corral._verification.tree_links import leads_to

PATTERNS = (
    # Tests and what they compare with.
    *("test/", "tests/", "__tests__/", "spec/", "specs/", "e2e/", "testing/", "fixtures/", "t/"),
    *("__fixtures__/", "testdata/", "test-data/", "test_data/", "snapshots/", "__snapshots__/"),
    *("goldens/", "golden/", "__mocks__/", "cypress/", "step_definitions/", "xt/", "testthat/"),
    *("Test/", "Tests/", "Spec/", "Specs/", "*Test/", "*Tests/", "*.Test/", "*[._-]tests/"),
    *(
        "*[._-]test/",
        "benches/",
        "testsuite/",
        "testsuites/",
        "**/features/steps/",
        "**/features/support/",
    ),
    *("*[._-]test.*", "*[._-]tests.*", "*[._-]spec.*", "*[._-]specs.*", "*_SUITE.erl"),
    *("*Test.*", "*Tests.*", "*Spec.*", "*Specs.*", "*TestCase.*", "*TestSuite.*", "*Suite.scala"),
    *("*IT.java", "*IT.kt", "*Cest.php", "*Cept.php", "Test[A-Z]*.*", "test[_-]*.*", "test.*"),
    *("tests.*", "spec.*", "*.t", "*.bats", "*.feature", "*.robot", "*.pf", "*.cy.*", "*.e2e.*"),
    *("test.sh", "runtest*", "run_test*", "run-test*", "run[_-]spec*", "*[_-]test", "*[_-]tests"),
    *("*.snap", "*.ambr", "*.golden", "*.expected", "*.approved.*", "*.verified.*"),
    # Python: settings of test runners and linters, and what is imported at the start.
    *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini"),
    *("tox.toml", "noxfile.py", "setup.cfg", "setup.py", "pyproject.toml", ".coveragerc"),
    *("mypy.ini", ".mypy.ini", "ruff.toml", ".ruff.toml", ".flake8", ".pylintrc", "pylintrc"),
    *("pyrightconfig.json", "sitecustomize.py", "usercustomize.py", "*.pth", "pyvenv.cfg"),
    *(".bandit", ".isort.cfg", "ty.toml", ".stestr.conf", "manage.py", "dodo.py"),
    *("tasks.py", "fabfile.py", "pavement.py", "nose.cfg", ".noserc", "unittest.cfg", "behave.ini"),
    *(".behaverc", ".testr.conf", "hatch.toml", "pdm.toml", "uv.toml", "poetry.toml", "Pipfile"),
    *(
        ".pycodestyle",
        ".pep8",
        ".pydocstyle*",
        ".style.yapf",
        ".pytype.cfg",
        ".pyre_configuration*",
    ),
    *(".importlinter", "tach.toml", "robot.toml", "pip.conf"),
    # JavaScript and TypeScript.
    *("package.json", ".npmrc", ".yarnrc*", ".pnpmfile.*", "jest.config.*", "jest.setup.*"),
    *("vitest.*", "vite.config.*", "playwright.config.*", "cypress.config.*", "karma.conf.*"),
    *(".mocharc*", "ava.config.*", "tsconfig*.json", "jsconfig*.json", "babel.config.*"),
    *(".babelrc*", ".swcrc", ".taprc", ".nycrc*", "nyc.config.*", ".c8rc*", "wdio.conf.*"),
    *("protractor.conf.*", "nightwatch.*", "stryker.*", ".testcaferc*", "jasmine.json"),
    *("eslint.config.*", ".eslintrc*", "biome.json*", ".prettierrc*", "prettier.config.*"),
    *("stylelint.config.*", ".stylelintrc*", ".oxlintrc*", "deno.json*", "bunfig.toml"),
    *("webpack.config.*", "rollup.config.*", "nx.json", "turbo.json", "lerna.json", "rush.json"),
    *("cucumber.js*", ".labrc.js", "testem.*", ".ember-cli*", "mocha.opts", "karate-config.js"),
    *(".jshintrc", "tslint.json", ".jscsrc", ".xo-config*", "xo.config.*", ".standard.json"),
    *(".browserslistrc", ".postcssrc*", "postcss.config.*", "rspack.config.*", "esbuild.config.*"),
    *("tsup.config.*", "tsdown.config.*", "metro.config.*", "next.config.*", "nuxt.config.*"),
    *("svelte.config.*", "astro.config.*", "rstest.config.*", "web-test-runner.config.*"),
    *("commitlint.config.*", ".commitlintrc*", "project.json", ".remarkrc*", ".markdownlint*"),
    *("lighthouserc.*", ".lighthouserc*", ".pa11yci*", "backstop.json", "codecept.conf.*"),
    *("hardhat.config.*", "truffle-config.js", "foundry.toml", ".solcover.js", ".solhint.json"),
    *("pnpm-workspace.yaml", ".pnp.*", "gulpfile.*", "Gruntfile.*", "angular.json"),
    # Go, Rust, C and C++.
    *("go.mod", "go.work", ".golangci.*", "staticcheck.conf", "magefile.go", "Cargo.toml"),
    *(".cargo/", "build.rs", "nextest.toml", "clippy.toml", ".clippy.toml", "rustfmt.toml"),
    *(".rustfmt.toml", "deny.toml", "rust-toolchain*", "CMakeLists.txt", "CMakePresets.json"),
    *("*.cmake", "meson.build", "meson_options.txt", "meson.options", "configure"),
    *("configure.ac", "SConstruct", "SConscript", "wscript", "build.ninja", "conanfile.*"),
    *(
        "CMakeUserPresets.json",
        "CTestTestfile.cmake",
        "CTestCustom.*",
        "Makefile.in",
        "Makefile.am",
    ),
    *(
        "configure.in",
        "xmake.lua",
        "premake*.lua",
        "Jamfile*",
        "Jamroot*",
        "Tupfile*",
        "Tuprules.*",
    ),
    *("Kbuild", "Kconfig*", "BUILD.gn", ".gn", "Tests.cmake", "meson.options", "nob.c", "*.ninja"),
    *("vcpkg.json", ".clang-tidy", ".clang-format", "build.zig*", "dub.json", "dub.sdl"),
    # Java, Kotlin, Scala, Groovy, Clojure; C#, F#, Visual Basic.
    *("pom.xml", "build.gradle*", "settings.gradle*", "gradle.properties", "gradlew*", "mvnw*"),
    *("*.versions.toml", ".mvn/", "gradle/", "buildSrc/", "build.xml", "build.sc", "build.mill"),
    *("*.sbt", "testng*.xml", "junit-platform.properties", "checkstyle*.xml", "pmd*.xml"),
    *("spotbugs*.xml", "detekt.y*ml", "lint.xml", ".scalafix.conf", ".scalafmt.conf"),
    *("*.gradle", "*.gradle.kts", "gradle.lockfile", "project/*.scala", "project/build.properties"),
    *(".sbtopts", ".jvmopts", ".mill-version", "jvm.config", "maven.config", "ivy.xml", "bnd.bnd"),
    *("cucumber.properties", "serenity.*", "archunit.properties", "lombok.config", "pitest*"),
    *("scalastyle-config.xml", "dependency-check*.xml", "build.boot", "epsilon.edn", "kaocha.edn"),
    *("stylecop.json", "*.ruleset", "*.props", "*.targets", "dotnet-tools.json", "packages.config"),
    *("project.clj", "deps.edn", "tests.edn", "bb.edn", "shadow-cljs.edn", "*.csproj", "*.fsproj"),
    *("*.vbproj", "*.sln", "*.slnx", "*.runsettings", "Directory.Build.*", "Directory.Packages.*"),
    *("global.json", "[Nn]u[Gg]et.[Cc]onfig", "xunit.runner.json", ".globalconfig"),
    # Ruby, PHP, Perl, Lua, R, Julia.
    *("Rakefile", "*.rake", ".rspec", "Gemfile", "*.gemspec", ".rubocop*", "Guardfile"),
    *(".simplecov", "phpunit.xml*", "Pest.php", "composer.json", "phpcs.xml*", "phpstan.*"),
    *("psalm.xml*", "codeception.y*ml", "behat.y*ml", "infection.json*", ".php-cs-fixer*"),
    *("Makefile.PL", "Build.PL", ".proverc", "cpanfile", "dist.ini", ".perlcriticrc"),
    *(".luacheckrc", ".busted", "*.rockspec", "DESCRIPTION", ".Rprofile", ".lintr"),
    *("Project.toml", "Manifest.toml", ".Renviron", "NAMESPACE", "_targets.R", "renv.lock"),
    *("cucumber.y*ml", "config.ru", ".standard.yml", ".reek*", "Steepfile", "sorbet/", "Brewfile"),
    *("grumphp.yml*", "rector.php", "ecs.php", "phpmd.xml*", "phpbench.json", "kahlan-config.php"),
    *("phpspec.y*ml", ".phpspec*", "paratest.*", ".perltidyrc", "minil.toml", "busted.lua"),
    # Swift, Dart, Haskell, OCaml, Elixir, Erlang, Nim, Crystal.
    *("Package.swift", "*.xctestplan", "*.pbxproj", "*.xcscheme", ".swiftlint.yml"),
    *("pubspec.yaml", "analysis_options.yaml", "dart_test.yaml", "*.cabal", "cabal.project*"),
    *("stack.yaml", "package.yaml", "hie.yaml", "dune", "dune-project", "*.opam", "mix.exs"),
    *("Podfile", "Cartfile", "*.xcconfig", "Project.swift", ".swiftformat", "test_helper.exs"),
    *("melos.yaml", "build.yaml", "flutter_test_config.dart", "pubspec_overrides.yaml"),
    *(".hlint.yaml", "hpack.yaml", "cabal.config", "Setup.hs", "dune-workspace", ".ocamlformat"),
    *("elvis.config", "sys.config", "erlang.mk", "relx.config", "gleam.toml", "elm.json"),
    *(
        "config.nims",
        "ameba.yml",
        ".ameba.yml",
        "v.mod",
        "spago.*",
        "rescript.json",
        "bsconfig.json",
    ),
    *(".formatter.exs", ".credo.exs", "rebar.config*", "*.nimble", "nim.cfg", "shard.yml"),
    # What builds and runs.
    *("[Mm]akefile", "GNUmakefile", "BSDmakefile", "*.mk", "*.mak", "Makefile.*"),
    *("[Jj]ustfile", ".justfile", "*.just", "[Tt]askfile*.y*ml", "BUILD", "BUILD.bazel"),
    *("WORKSPACE*", "MODULE.bazel", ".bazelrc", "*.bzl", "BUCK", ".buckconfig", "pants.toml"),
    *("Dockerfile*", "Containerfile*", "docker-compose*.y*ml", "compose*.y*ml", "docker-bake.*"),
    *("Vagrantfile", "Procfile*", "Snakefile", "dagger.json", "buf*.yaml", "*.make", "Makefile-*"),
    *(
        "moon.yml",
        ".moon/",
        "please.build",
        ".plzconfig*",
        "wireit.json",
        "garden.y*ml",
        "pixi.toml",
    ),
    *("Earthfile", "Tiltfile", "flake.nix", "shell.nix", "default.nix", "devenv.nix"),
    # What runs elsewhere, and what chooses programs or files.
    *(".github/", ".gitlab-ci.yml", ".circleci/", "Jenkinsfile", "azure-pipelines.yml"),
    *(".buildkite/", ".travis.yml", "bitbucket-pipelines.yml", ".drone.yml", ".woodpecker*"),
    *("appveyor.yml", ".appveyor.yml", ".teamcity/", ".cirrus.yml", "lefthook.y*ml"),
    *(".semaphore/", ".semgrep*", "sonar-project.properties", "codecov.y*ml", ".codecov.y*ml"),
    *("codefresh.yml", "cloudbuild.yaml", "buildspec.y*ml", "wercker.yml", ".vsts-ci.yml"),
    *(
        ".yamllint*",
        ".hadolint.yaml",
        ".shellcheckrc",
        ".ansible-lint*",
        "molecule/",
        ".tflint.hcl",
    ),
    *(
        "typos.toml",
        "_typos.toml",
        ".typos.toml",
        ".codespellrc",
        "cspell*",
        ".cspell*",
        ".vale.ini",
    ),
    *("lychee.toml", ".lycheeignore", ".checkov.y*ml", "trivy.yaml", ".protolint*", ".spectral*"),
    *(".sqlfluff", "dbt_project.yml", ".gitlint", ".pre-commit-hooks.yaml", "overcommit.yml"),
    *(".pre-commit-config.yaml", ".husky/", ".lintstagedrc*", ".gitattributes", ".gitmodules"),
    *(".editorconfig", ".python-version", ".node-version", ".ruby-version", ".java-version"),
    *(".nvmrc", ".tool-versions", "mise.toml", ".mise.toml", ".envrc", ".env", ".env.*"),
    ".*ignore",
    # Installed programs and caches, which no person reads, and what was compiled.
    *("node_modules/", ".venv/", "venv/", "site-packages/", "vendor/", "third_party/"),
    *("bower_components/", "Pods/", "__pypackages__/", ".eggs/", ".direnv/", "renv/library/"),
    *(".bundle/", ".yarn/", "*.dist-info/", "*.egg-info/", "*.egg-link", "*.egg"),
    *("__pycache__/", ".*_cache/", ".cache/", ".tox/", ".nox/", ".hypothesis/", ".gradle/"),
    *(".task/", ".nyc_output/", ".turbo/", ".parcel-cache/", ".stack-work/", ".phpunit.*"),
    *(".eslintcache", ".stylelintcache", "*.tsbuildinfo", ".rspec_status", "*.py[cod]"),
    *("*.so", "*.dylib", "*.dll", "*.class", "*.o", "*.obj", "*.a", "*.beam", "*.elc"),
    *("*.luac", "*.rbc", "*.hi", "*.cm[aiox]", "*.jar", "*.rlib"),
)
"""Names of files that judge, as people write them for the languages in use."""

_RUNNERS = frozenset(
    (
        *("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "exceptiongroup"),
        *("tomli", "nose", "nose2", "hypothesis", "coverage", "xdist", "pytest_cov"),
        *("pytest_asyncio", "anyio", "execnet", "tox", "nox", "mypy", "mypyc", "ruff"),
        *("flake8", "pylint", "astroid", "pyflakes", "pycodestyle", "attr", "attrs"),
        *("colorama", "pygments", "setuptools", "pkg_resources", "_distutils_hack", "pip"),
        *("typing_extensions", "typeguard", "faker", "syrupy", "langsmith", "allure_pytest"),
        *("testmon", "nbval", "respx", "inline_snapshot", "xprocess"),
        *("stestr", "subunit", "testtools", "twisted", "trio", "sniffio"),
        *("idna", "execnet", "sortedcontainers", "bandit", "black", "isort", "pyright"),
        *("virtualenv", "filelock", "platformdirs", "distlib", "cachetools", "pathspec", "click"),
        *("pep8", "mccabe", "tomlkit", "dill", "yaml", "tomli_w", "pyproject_api", "argcomplete"),
    )
)
"""Modules that Python's test runners and linters import."""
_MODULES = _RUNNERS | sys.stdlib_module_names
_PLUGINS = (
    "pytest",
    "_pytest",
    "_hypothesis",
    "hypothesis_",
    "flake8_",
    "pylint_",
    "mypy_",
    "nose_",
)
"""How the names of modules begin that runners load as plugins."""
_IMPORTED = (".py", ".pyc", ".so", ".pyd")
"""How the names of files end that Python imports."""
_SHADOWS = Rules(
    b"minitest/\nminitest.rb\nrspec/\nrspec.rb\nrspec-core.rb\nrspec-*/\nset.rb\njson.rb\nbundler/\n"
    b"rubygems/\nrubygems.rb\nbundler.rb\nlib/pp.rb\nlib/optparse.rb\nlib/english.rb\n"
    b"assert.h\nstdio.h\nstdlib.h\nstring.h\nstddef.h\nstdint.h\nstdbool.h\nmath.h\nsetjmp.h\n"
    b"signal.h\nerrno.h\nlimits.h\nstdarg.h\ntime.h\nunistd.h\ncassert\niostream\nstring\nvector\n"
    b"gtest/\ngmock/\ncatch2/\ncatch.hpp\ndoctest/\ndoctest.h\ncmocka.h\ncheck.h\nunity.h\n"
    b"criterion/\nCUnit/\nboost/\ncppunit/\nmunit.h\n"
    b"junit/\njupiter/\nhamcrest/\nassertj/\nmockito/\ntestng/\nkotest/\nmockk/\nscalatest/\nmunit/\n"
    b"specs2/\nspock/\nscalacheck/\nluaunit.lua\nluassert/\nbusted/\nbusted.lua\nPHPUnit/\nTAP/\n"
    b"ex_unit/\neunit.hrl\n"
)
"""What runners of other languages load, if the run has added it."""
_ROOTS = ("src/", "lib/", "python/")
"""Folders in which imports begin, besides the working directory."""
_SCRIPTS = (".py", ".js", ".cjs", ".mjs", ".jsx", ".ts", ".cts", ".mts", ".tsx", ".rb", ".pl",
            ".pm", ".lua", ".php", ".rs")  # fmt: skip
"""Files that are run by a name without its end: ``node check``, ``cargo run --bin check``."""
_LOADED = (*_SCRIPTS, *_IMPORTED)
_SCRIPT_FOLDERS = ("", "src/bin/", "examples/")
_SEPARATORS = re.compile(r"[\s\"'`;&|()<>{}$=,:!@]+")
_VARIABLE = re.compile(r"\$(?:\w+|\{[^}]*\})/?")
_COMPUTED = re.compile(r"\$(?:\w+|[@*#?!$-]|\{[^}]*\}|\([^()]*\))|`[^`]*`")
"""Parts of words that a shell computes: ``$NAME``, ``$(command)``."""
_ALTERNATIVES = re.compile(r"\{([^{}\s]*,[^{}\s]*)\}")
_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_MODULE_OPTION = re.compile(r"-[A-Za-z]*m")
_IMPORT = re.compile(r"\b(?:import|from)\s+([A-Za-z_]\w*)")
_GLOB = re.compile(r"[*?\[]")
_DEEPEST = 3
"""Commands within quotes of a command that are read, and variables within those of a Makefile."""
MOST_NAMES = 20
"""Names of a file by way of links that are looked up among further links, and words that a shell
makes of one."""
LONGEST_LINE = 4_000
"""Characters of a line of a Makefile that are read, and of a variable."""
MAKEFILES = re.compile(rb"(?:.*/)?(?:[Mm]akefile(?:\..*)?|(?:GNU|BSD)makefile|.*\.ma?k)")
_ASSIGNMENT = re.compile(r"\s*(?:export\s+|override\s+)?([\w.-]+)\s*(?:[:?+!]{0,3}=)\s*(.*)")
_FUNCTION = re.compile(r"\$[({][^(){}]*[)}]|\$[^\s(){}]")
_INCLUDE = re.compile(r"^ *[-s]?include[ \t]+([^#\n]+)", re.MULTILINE)
_PARTS = re.compile(r"[^A-Za-z0-9]+")
"""Between the parts of names that make may join."""
_REFERENCE = re.compile(r"\$[({]([\w.-]+)[)}]")


class Place(msgspec.Struct, frozen=True):
    """Where the files are."""

    inside: str = ""
    """The working directory, from the root of the tree."""
    roots: tuple[str, ...] = ()
    """Names of the root on this machine."""


class Judges:
    """Decides which files judge. All paths are from the root of the tree."""

    def __init__(
        self,
        before: Collection[bytes] = (),
        *,
        work: Sequence[str] = (),
        patterns: Sequence[str] = (),
        commands: Iterable[str] = (),
        place: Place | None = None,
        makefiles: Mapping[bytes, bytes] | None = None,
        links: Mapping[str, str] | None = None,
    ) -> None:
        """``before``: the files before the run. ``work`` is from the working directory.
        ``makefiles`` and ``links``: their content before the run."""
        place = place or Place()
        self._inside = f"{place.inside}/" if place.inside else ""
        self._own = _rules(tuple(patterns))
        self._rules = _rules((*PATTERNS, *patterns))
        self._work = _rules(tuple(work)) if work else None
        self._links = _by_target(links or {})
        names = [os.fsdecode(path) for path in before]
        names += [other for name in names for other in self._linked_names(name)]
        self._existing = _Existing(names, place)
        self._named = {path for each in commands for path in self._existing.named_by(each)}
        self._named_stems = {path.removesuffix(_end_of(path)) for path in self._named}
        texts = {
            path: content.decode("utf-8", "replace") for path, content in (makefiles or {}).items()
        }
        targets = {path: {*_targets(path, text, place.inside)} for path, text in texts.items()}
        self._targets = [
            re.compile(_target_expression(each)) for names in targets.values() for each in names
        ]
        self._named |= {*map(os.fsdecode, makefiles or {})}  # also what a Makefile includes
        self._words = {
            word
            for path, names in targets.items()
            if any("*" in each for each in names)
            for word in _PARTS.split(texts[path])
        }

    def decides(self, path: bytes, *, is_new: bool) -> bool:
        """Whether the file is as before the run. ``is_new``: the run has added it."""
        if self._work is None:
            return self.decides_by_name(path, is_new=is_new)
        inside = os.fsencode(self._inside)
        if not path.startswith(inside):
            return True
        is_work = bool(scan.verdict_below(self._work, path.removeprefix(inside)))
        return not is_work or bool(scan.verdict_below(self._own, path))

    def decides_by_name(self, path: bytes, *, is_new: bool) -> bool:
        """The same, by the rule for runs without ``work``."""
        verdict = scan.verdict_below(self._rules, path)
        if verdict is not None:
            return verdict
        name = os.fsdecode(path)
        linked = self._linked_names(name)
        if any(not self._named.isdisjoint(_with_folders(each)) for each in (name, *linked)):
            return True
        if any(scan.verdict_below(self._rules, os.fsencode(each)) for each in linked.values()):
            return True
        return is_new and (
            self.is_target(path)
            or self._may_be_target(name)
            or bool(scan.verdict_below(_SHADOWS, path))
            or self._replaces(name)
            or self._shadows(name)
        )

    @property
    def knows_targets(self) -> bool:
        """Whether there is a Makefile with targets."""
        return bool(self._targets)

    def is_target(self, path: bytes) -> bool:
        """Whether it has the name of a target of a Makefile, or is below a folder with one."""
        name = os.fsdecode(path)
        return any(target.match(name) for target in self._targets)

    def _may_be_target(self, name: str) -> bool:
        """Whether it is in a new folder whose name make may compute, of words of a Makefile."""
        return any(
            folder not in self._existing and self._words.issuperset(_PARTS.split(folder))
            for folder in _with_folders(name)[:-1]
        )

    def _linked_names(self, name: str) -> dict[str, str]:
        """The names of a file by way of links, also of two, and what of each is beside the last
        link or below it."""
        found: dict[str, str] = {}
        names = [name]
        for _ in range(2):
            for each in names:
                for folder in ("", *_with_folders(each)):
                    rest = f"{each}/".removeprefix(f"{folder}/" if folder else "").rstrip("/")
                    for link in self._links.get(folder, ()):
                        below = f"/{rest}" if rest else ""
                        found.setdefault(f"{link}{below}", f"{link.rpartition('/')[2]}{below}")
            names = [*found][:MOST_NAMES]
        return found

    def _replaces(self, name: str) -> bool:
        """Whether a new file is loaded in place of a script that judges: it differs only after a
        dot, or is in a folder with that name."""
        if not name.endswith(_LOADED):
            return False
        *folders, _ = _with_folders(name)
        above, slash, last = name.rpartition("/")
        words = last.split(".")
        stems = {
            *folders,
            *(f"{above}{slash}{'.'.join(words[:end])}" for end in range(1, len(words))),
        }
        return any(
            stem in self._named_stems or any(map(self._judged_before, self._existing.scripts(stem)))
            for stem in stems
        )

    def _shadows(self, name: str) -> bool:
        """Whether a new file has the name of a module that a runner imports, or is in a package
        with such a name. Only where imports begin: a package may have a module of any name."""
        if not name.endswith(_IMPORTED):
            return False
        folders = ["", *(f"{each}/" for each in _with_folders(name)[:-1])]
        return any(
            _is_loaded(re.split(r"[/.]", name[len(folder) :], maxsplit=1)[0])
            and self._begins_imports(folder)
            for folder in folders
        )

    def _begins_imports(self, folder: str) -> bool:
        if folder in {self._inside, *(f"{self._inside}{each}" for each in _ROOTS)}:
            return True
        if f"{folder}__init__.py" in self._existing:
            return False
        return any(map(self._judged_before, self._existing.modules_in(folder)))

    def _judged_before(self, name: str) -> bool:
        return self.decides_by_name(os.fsencode(name), is_new=False)


@lru_cache(maxsize=8)
def _rules(patterns: tuple[str, ...]) -> Rules:
    return Rules("\n".join(patterns).encode("utf-8", "surrogateescape"))


def _by_target(links: Mapping[str, str]) -> dict[str, list[str]]:
    """The links that lead to each file or folder of the tree."""
    found: dict[str, list[str]] = {}
    for link in links:
        found.setdefault(leads_to(link, links), []).append(link)
    return found


def _with_folders(name: str) -> list[str]:
    """The folders above the file, and the file."""
    parts = name.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def _is_loaded(module: str) -> bool:
    return module in _MODULES or module.startswith(_PLUGINS)


def _end_of(path: str) -> str:
    """The end of the name of a script; empty for other files."""
    end = os.path.splitext(path)[1]
    return end if end in _SCRIPTS else ""


class _Existing:
    """The files and folders before the run."""

    def __init__(self, before: Iterable[str], place: Place) -> None:
        self._place = place
        self._paths: set[str] = set()
        self._by_name: dict[str, list[str]] = {}
        self._by_stem: dict[str, list[str]] = {}
        self._modules: dict[str, list[str]] = {}
        for name in before:
            self._paths.update(_with_folders(name))
            if name.endswith(_SCRIPTS):
                self._by_stem.setdefault(os.path.splitext(name)[0], []).append(name)
            if name.endswith(".py"):
                folder = name[: name.rfind("/") + 1]
                self._modules.setdefault(folder, []).append(name)
        for path in self._paths:
            self._by_name.setdefault(path.rpartition("/")[2], []).append(path)

    def __contains__(self, path: str) -> bool:
        return path in self._paths

    def scripts(self, stem: str) -> Sequence[str]:
        return self._by_stem.get(stem, ())

    def modules_in(self, folder: str) -> Sequence[str]:
        return self._modules.get(folder, ())

    def named_by(self, command: str) -> set[str]:
        """What the words of a command name."""
        imported = {*_IMPORT.findall(command)}
        named: set[str] = set()
        for word, is_module in {*_words(command)}:
            named |= self._below(word)
            if is_module and _MODULE.fullmatch(word):
                named |= self._module(word, least=1)
            elif word.split(".")[0] not in imported:  # what is only imported is the work
                named |= self._script(word)
                if _MODULE.fullmatch(word):
                    named |= self._module(word, least=2)
        return named

    def _below(self, word: str) -> set[str]:
        """The files and folders with this path, at any depth."""
        if word.startswith(("/", "~")):
            for root in self._place.roots:
                if f"{word}/".startswith(f"{root}/"):
                    return self._below(os.path.relpath(word, root))
            parts = PurePosixPath(word).parts[1:]
            return {"/".join(parts[at:]) for at in range(len(parts))} & self._paths
        path = os.path.normpath(word)
        while path.startswith("../"):
            path = path[3:]
        if not path.strip("./*"):
            return set()  # the whole folder
        if _GLOB.search(path):
            matches = re.compile(f"(?:.*/)?{translate(path)}").match
            return {each for each in self._paths if matches(each)}
        return {
            each
            for each in self._by_name.get(path.rpartition("/")[2], ())
            if each == path or each.endswith(f"/{path}")
        }

    def _module(self, word: str, *, least: int) -> set[str]:
        """The files and folders of a module of Python, also if the last words are names in it."""
        parts = word.split(".")
        for end in range(len(parts), least - 1, -1):
            path = "/".join(parts[:end])
            if named := self._below(f"{path}.py") | self._below(path):
                # Python runs what is in the packages above before the module.
                packages = (each for path in named for each in _with_folders(path)[-end:-1])
                return named | {f"{package}/__init__.py" for package in packages}
        return set()

    def _script(self, word: str) -> set[str]:
        """The scripts that are named without the end of their names."""
        if "/" in word:
            return {path for end in _SCRIPTS for path in self._below(f"{word}{end}")}
        inside = f"{self._place.inside}/" if self._place.inside else ""
        return self._paths & {
            f"{above}{folder}{word}{end}"
            for above in ("", inside)
            for folder in _SCRIPT_FOLDERS
            for end in _SCRIPTS
        }


def _words(text: str, depth: int = 0) -> Iterator[tuple[str, bool]]:
    """The words of a command, whatever shell or program reads it, and whether each is the name of
    a module after ``-m``. Texts in quotes are words, and commands too."""
    try:
        tokens = shlex.split(text)
    except ValueError:  # not for a shell
        tokens = []
    for token in tokens:
        if token != text and depth < _DEEPEST:
            yield token, False
            yield from _words(token, depth + 1)
    many = " ".join(
        each for word in text.split() for each in islice(_alternatives(word), MOST_NAMES)
    )
    for each in {text, many, _VARIABLE.sub(" ", text), _COMPUTED.sub("*", many)}:
        previous = ""
        for word in _SEPARATORS.split(each):
            yield word.lstrip("-+"), bool(_MODULE_OPTION.fullmatch(previous))
            if word.startswith("-"):
                yield word[2:], word.startswith("-m")  # -fFILE, -mMODULE
            previous = word


def _alternatives(word: str) -> Iterator[str]:
    """``a.sh`` and ``b.sh`` for ``{a,b}.sh``."""
    found = _ALTERNATIVES.search(word)
    if found is None:
        yield word
        return
    for each in found[1].split(","):
        yield from _alternatives(f"{word[: found.start()]}{each}{word[found.end() :]}")


def included_by(text: str) -> set[str]:
    """The names of the files that a Makefile includes."""
    return {word for found in _INCLUDE.findall(text[: 64 * LONGEST_LINE]) for word in found.split()}


def _targets(makefile: bytes, text: str, inside: str) -> Iterator[str]:
    """The paths of the targets of a Makefile, as patterns of make, but for phony ones. ``*`` stands
    for what make computes."""
    values: dict[str, str] = {}
    targets: set[str] = set()
    phony: set[str] = set()
    for line in text.replace("\\\n", " ").splitlines():
        if assignment := _ASSIGNMENT.match(line):
            value = f"{values.get(assignment[1], '')} {assignment[2]}"
            values[assignment[1]] = value[:LONGEST_LINE]
            continue
        if line[:1].isspace():
            continue
        known = _without_functions(_expanded(line[:LONGEST_LINE], values))
        head, colon, rest = known.partition(":")
        if not colon or "#" in head or "=" in head:
            continue
        if head.split() == [".PHONY"]:
            phony |= {*rest.split()}
        targets |= {*head.removesuffix("&").split()}
    folders = {os.path.dirname(os.fsdecode(makefile)), inside, ""}
    for target in targets - phony - {".PHONY"}:
        if target.strip("%./"):
            yield from {os.path.normpath(os.path.join(folder, target)) for folder in folders}


def _without_functions(line: str) -> str:
    """The line with ``*`` for what make computes."""
    for _ in range(_DEEPEST):
        line = _FUNCTION.sub("*", line)
    return line


def _expanded(line: str, values: Mapping[str, str]) -> str:
    for _ in range(_DEEPEST):
        line = _REFERENCE.sub(lambda found: values.get(found[1], found[0]), line)[:LONGEST_LINE]
    return line


def _target_expression(target: str) -> str:
    """What matches a file with the name of a target, and what is below a folder with that name.
    What make computes may be any name without a dot, of a file."""
    pieces = {"%": "[^/]*", "*": "[^/.]*"}
    text = "".join(pieces.get(piece, re.escape(piece)) for piece in re.split(r"([%*])", target))
    return text + (r"\Z" if "*" in target else r"(?:/|\Z)")
