"""Programs that run beside the work that is checked, in its sandbox, with any Python from 3.8 on.
They import nothing of corral: it passes them to Python as text."""
