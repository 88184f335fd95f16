"""Running a chosen plan: custom operators, executors, the optimized module and its files."""
