"""The one package that imports llama_cpp (and numpy): the real backend."""

from worker.llama.package import use_bare_package

use_bare_package()  # before any module here imports the bindings
