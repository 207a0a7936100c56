"""Models through their vendors' own APIs, found by name.

::

    answer = await corral.models.generate("gemini:gemini-2.5-flash", "Say hello")

A vendor's module is imported only when a name asks for it. Other packages add
theirs through the entry point group ``corral.models``, each entry naming a tuple
of records.
"""
