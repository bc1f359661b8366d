
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('approvals', '0005_heading'),
        ('runs', '0006_credentials'),
    ]

    operations = [
        migrations.AddField(
            model_name='packet',
            name='credential',
            field=models.OneToOneField(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='packet', to='runs.credentialgrant'),
        ),
    ]
