"""Showing: measured facts as plain data, and one file for each way to render them."""

from sparta.reporting.document import Cell as Cell
from sparta.reporting.document import Column as Column
from sparta.reporting.document import Document as Document
from sparta.reporting.document import Table as Table
from sparta.reporting.renderers import render as render
from sparta.reporting.report import LayerReport as LayerReport
from sparta.reporting.report import Report as Report
