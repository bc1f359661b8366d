from django.db import migrations

from portal.rows import append_only, isolate


class Migration(migrations.Migration):
    dependencies = [("portal", "0005_checkpoints")]
    operations = [isolate("portal_auditcheckpoint"), append_only("portal_auditcheckpoint")]
