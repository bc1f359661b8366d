from django.db import migrations

from portal.rows import append_only, isolate


class Migration(migrations.Migration):
    dependencies = [("portal", "0001_initial")]
    # The membership table stays open: the guarded door reads it to learn the tenant.
    operations = [isolate("portal_auditentry"), append_only("portal_auditentry")]
