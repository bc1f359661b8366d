from django.db import migrations

from portal.rows import isolate


class Migration(migrations.Migration):
    dependencies = [("approvals", "0002_initial")]
    operations = [
        isolate(
            "approvals_policyversion",
            "approvals_candidate",
            "approvals_receipt",
            "approvals_packet",
            "approvals_decision",
            "approvals_publication",
        )
    ]
