"""The report: one HTML file with maps, calibration, scores and how to reproduce them.

It needs no network and no other file. Texts and charts are made here; maps and series are drawn in
the browser (`*.js`) from arrays in the page. Nothing that comes from data is ever run: texts are
escaped, and the page's content security policy admits no other script than its own.
"""
