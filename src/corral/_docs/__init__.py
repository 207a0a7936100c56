"""The documentation of the installed version: its pages, and the site that is made of them."""
