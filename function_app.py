"""A marker: the Functions worker and its tools look for a file of this name and then import the folder function_app.

Nothing in here is ever run; the folder wins over the file.  The functions are in function_app/__init__.py.
"""

raise SystemExit("function_app.py is a marker and must not be executed; the folder function_app was not found")
