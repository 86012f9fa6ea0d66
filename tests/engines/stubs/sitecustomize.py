"""Start-up hook of every Python process that has this folder on its PYTHONPATH.

SGLang spawns its scheduler as a process of its own, and ``sitecustomize`` is the one module that
Python imports in each of them before anything else. It installs the stand-ins and the observer, and
imports nothing heavy itself.
"""

import absent_modules
import latent
import observer

absent_modules.install()
latent.install()
observer.install()
