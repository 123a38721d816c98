"""The server: a model's map for people, and its predictions for machines.

`gridtnp serve RUN` shows the live map in a browser. Machines use OGC API – Environmental Data
Retrieval, map tiles, and `POST /predict` with observations of their own. Predictions run in
threads beside the event loop, and every number is that of `GriddedTNP.predict`.
"""
