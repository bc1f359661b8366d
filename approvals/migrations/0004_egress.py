import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('approvals', '0003_walls'),
        ('portal', '0002_walls'),
        ('runs', '0003_egress'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='packet',
            name='packet_kind_known',
        ),
        migrations.AddField(
            model_name='packet',
            name='egress',
            field=models.OneToOneField(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='packet', to='runs.egressgrant'),
        ),
        migrations.AddConstraint(
            model_name='packet',
            constraint=models.CheckConstraint(condition=models.Q(('kind__in', ['call', 'question', 'egress', 'publication'])), name='packet_kind_known'),
        ),
    ]
