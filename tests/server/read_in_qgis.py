"""Run by the Python of QGIS: open tiles, a netCDF file and stations, and print what is in them.

python read_in_qgis.py ADDRESS FILE TIME
"""

import json
import sys
from typing import Any

from qgis.core import (
    QgsApplication,
    QgsMapRendererParallelJob,
    QgsMapSettings,
    QgsPointXY,
    QgsRasterLayer,
    QgsRectangle,
    QgsVectorLayer,
)
from qgis.PyQt.QtCore import QSize


def read(address: str, path: str, time: str, *box: str) -> dict[str, Any]:
    tiles = QgsRasterLayer(
        f"type=xyz&zmin=0&zmax=12&url={address}tiles/%7Bz%7D/%7Bx%7D/%7By%7D.png?datetime%3D{time}",
        "tiles",
        "wms",
    )
    field = QgsRasterLayer(path, "field", "gdal")
    stations = QgsVectorLayer(f"{address}collections/predictions/locations", "stations", "ogr")
    layers = {"tiles": tiles, "field": field, "stations": stations}
    found = {name: [one.isValid(), one.crs().authid()] for name, one in layers.items()}
    settings = QgsMapSettings()
    settings.setLayers([tiles])
    settings.setDestinationCrs(tiles.crs())
    settings.setExtent(QgsRectangle(*map(float, box)))
    settings.setOutputSize(QSize(256, 256))
    job = QgsMapRendererParallelJob(settings)
    job.start()
    job.waitForFinished()
    picture = job.renderedImage()
    pixels = [[picture.pixelColor(x, y).getRgb() for x in range(256)] for y in range(256)]
    value, known = field.dataProvider().sample(QgsPointXY(0.0, 50.0), 1)
    more = {"count": stations.featureCount(), "value": value if known else None, "pixels": pixels}
    return {**found, **more}


app = QgsApplication([], False)
app.initQgis()
print(json.dumps(read(*sys.argv[1:])))
app.exitQgis()
