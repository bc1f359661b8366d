from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps


def fill(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    """Each tenant's head is the last line that is there."""
    tenants, entries = apps.get_model("portal", "Tenant"), apps.get_model("portal", "AuditEntry")
    for tenant in tenants.objects.all():
        last = entries.objects.filter(tenant=tenant).order_by("-seq").first()
        if last is not None:
            tenants.objects.filter(pk=tenant.pk).update(audit_seq=last.seq, audit_head=last.hash)


class Migration(migrations.Migration):
    dependencies = [("portal", "0002_walls")]
    operations = [
        migrations.AddField(
            model_name="tenant",
            name="audit_seq",
            field=models.PositiveBigIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="tenant",
            name="audit_head",
            field=models.CharField(default="0" * 64, max_length=64),
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
