"""Configuration of Sphinx; `scripts/docs` builds the site with it."""

from __future__ import annotations

import inspect
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_extensions")]

from inventories import write_inventories

import streampca

EXECUTE = os.environ.get("STREAMPCA_DOCS_EXECUTE", "1") == "1"
ONLINE = os.environ.get("STREAMPCA_DOCS_ONLINE", "0") == "1"

project = "streampca"
author = "The streampca developers"
project_copyright = author
version = release = streampca.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "generated",
]
exclude_patterns = [
    "_build",
    "gallery",
    "auto_gallery/*.ipynb",
    "decisions.md",
    "reference/archive",
]  # for developers, and notebooks
templates_path = ["_templates"]
default_role = "literal"
nitpicky = True

# Pages: Markdown; those that begin with `file_format: mystnb` are executed, each in an empty directory.
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath", "deflist"]
_IPYTHON = HERE / "_build" / "ipython"  # kernels without the settings of the user, and without notes on their transport
(_IPYTHON / "profile_default").mkdir(parents=True, exist_ok=True)
(_IPYTHON / "profile_default" / "ipython_kernel_config.py").write_text("get_config().IPKernelApp.log_level = 'ERROR'\n")
os.environ["IPYTHONDIR"] = str(_IPYTHON)
nb_execution_mode = "cache" if EXECUTE else "off"
nb_execution_cache_path = str(HERE / "_build" / "notebooks")
nb_execution_in_temp = True
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
suppress_warnings = [] if EXECUTE else ["myst-nb.lexer"]  # what is not run has no kernel that names its language

# Reference of the API: types stand in the tables of parameters, so that signatures show names and defaults alone.
autodoc_typehints = "none"
autosummary_generate = True
autosummary_ignore_module_all = False
numpydoc_show_class_members = False
numpydoc_use_plots = False

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"plot_",
    "plot_gallery": "True" if EXECUTE else "False",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "backreferences_dir": "_build/backreferences",  # which the small gallery of the home page asks for
}

# Names of other projects resolve without a network, from the lists in inventories.txt.
intersphinx_mapping = {
    name: (url, (None, str(path)) if ONLINE else str(path))
    for name, (url, path) in write_inventories(HERE / "inventories.txt", HERE / "_build" / "inventories").items()
}

html_theme = "pydata_sphinx_theme"
html_title = "streampca"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/logo.svg"
html_show_sourcelink = False
html_theme_options = {
    "logo": {
        "text": f"streampca {version}",
        "alt_text": "streampca, home",
        "image_light": "_static/logo.svg",
        "image_dark": "_static/logo.svg",
    },
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "header_links_before_dropdown": 7,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = False
linkcheck_timeout = 20


def require_every_public_name(app: Any, env: Any) -> None:
    """Warn of public names that have no entry in the reference."""
    from sphinx.util import logging

    documented = env.get_domain("py").objects
    modules = [streampca, *(getattr(streampca, name) for name in streampca._MODULES)]
    for module in modules:
        for name in module.__all__:
            full = f"{module.__name__}.{name}"
            elsewhere = f"{getattr(getattr(module, name), '__module__', '')}.{name}"  # the same class or function
            if not {full, elsewhere} & set(documented) and name not in streampca._MODULES and not name.startswith("__"):
                logging.getLogger(__name__).warning("%s is public and not in the reference", full)


def require_sections(app: Any, env: Any) -> None:
    """Warn of public functions without a table of their parameters or of what they return."""
    from numpydoc.validate import validate
    from sphinx.util import logging

    functions = [getattr(streampca, name) for name in streampca._EXPORTS]
    functions += [getattr(streampca.metrics, name) for name in streampca.metrics.__all__]
    for function in functions:
        if inspect.isfunction(function):
            full = f"{function.__module__}.{function.__name__}"
            for code, message in validate(full)["errors"]:
                if code.startswith(("PR0", "RT0", "EX0")):
                    logging.getLogger(__name__).warning("%s: %s", full, message)


def setup(app: Any) -> None:
    """Add the checks of the reference."""
    import_module("matplotlib").use("agg")
    app.connect("env-check-consistency", require_every_public_name)
    app.connect("env-check-consistency", require_sections)
