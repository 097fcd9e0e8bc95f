import os

from flask import Flask

from dcp_dashboard import create_app
from dcp_dashboard.pages.layout import markup
from dcp_dashboard.web.app import ASSETS, Installation

BUNDLE = "/assets/dashboard.bundle.js"


def test_an_update_changes_no_script_of_a_server_that_runs_and_is_told(tmp_path):
    assets = tmp_path / "assets"
    assets.mkdir()
    script = assets / "a.js"
    script.write_text("old")
    installation, server = Installation([tmp_path], assets), Flask(__name__)
    server.add_url_rule("/assets/<filename>", "_dash_assets.static", lambda filename: "disk")
    installation.serve_assets(server)
    assert installation.told("the page") == "the page"
    script.write_text("new")
    answer = server.test_client().get("/assets/a.js")
    assert (answer.text, answer.mimetype) == ("old", "text/javascript")
    assert server.test_client().get("/assets/b.js").status_code == 404
    assert "was updated while this server runs" in markup(installation.told("the page"))
    script.write_text("old")
    os.utime(script, ns=(0, installation._known[script][1]))
    assert not installation.is_outdated
    (tmp_path / "b.py").touch()
    assert installation.is_outdated


def test_a_folder_that_goes_while_it_is_read_is_an_update(tmp_path, monkeypatch):
    (tmp_path / "going").mkdir()
    (tmp_path / "going" / "a.py").touch()
    installation, scandir = Installation([tmp_path]), os.scandir

    def gone(path):
        if str(path).endswith("going"):  # some are numbers: temporary folders that end now
            raise FileNotFoundError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", gone)
    assert installation.is_outdated


def test_the_application_sends_its_scripts_as_they_were_at_the_start(served_folder):
    client = create_app(served_folder).server.test_client()
    assert client.get(BUNDLE).data == (ASSETS / "dashboard.bundle.js").read_bytes()
    again = client.get(BUNDLE, headers={"If-None-Match": client.get(BUNDLE).headers["ETag"]})
    assert again.status_code == 304
    assert not Installation().is_outdated
