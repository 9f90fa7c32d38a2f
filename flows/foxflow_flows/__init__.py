"""Prefect flows of foxflow: tasks around the functions the command line calls, and no arithmetic."""
