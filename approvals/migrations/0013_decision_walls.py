from django.db import migrations

from portal.rows import append_only


class Migration(migrations.Migration):
    dependencies = [("approvals", "0012_policy_trials")]
    operations = [append_only("approvals_decision")]
