from django.db import migrations

from portal.rows import append_only, isolate


class Migration(migrations.Migration):
    dependencies = [("runs", "0001_initial")]
    operations = [
        isolate(
            "runs_jobcontract",
            "runs_contractversion",
            "runs_run",
            "runs_checkpoint",
            "runs_toolcall",
            "runs_event",
            "runs_charge",
            "runs_recording",
            "runs_tenantvalue",
            "runs_credential",
        ),
        append_only("runs_event"),
    ]
